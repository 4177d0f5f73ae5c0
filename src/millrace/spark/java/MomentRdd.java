package io.millrace;

import org.apache.spark.Partition;
import org.apache.spark.TaskContext;
import org.apache.spark.rdd.RDD;
import org.apache.spark.sql.catalyst.InternalRow;

/**
 * Rows of an epoch that know their epoch: a task that computes them finds it in a local property,
 * whichever thread or job asks for the rows, and whenever.
 */
public class MomentRdd extends RDD {
  private final String key;
  private final String moment;

  public MomentRdd(RDD parent, String key, String moment) {
    super(parent, scala.reflect.ClassTag$.MODULE$.apply(InternalRow.class));
    this.key = key;
    this.moment = moment;
  }

  public Partition[] getPartitions() { return firstParent(elementClassTag()).partitions(); }

  public scala.collection.Iterator compute(Partition split, TaskContext context) {
    context.getLocalProperties().setProperty(key, moment);
    return firstParent(elementClassTag()).iterator(split, context);
  }
}
