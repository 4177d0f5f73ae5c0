package io.millrace;

import org.apache.spark.Partition;
import org.apache.spark.TaskContext;
import org.apache.spark.rdd.RDD;
import org.apache.spark.sql.catalyst.InternalRow;

/**
 * Rows of an epoch that know their epoch and their shard: a task that computes them finds both in
 * local properties, whichever thread or job asks for the rows, and whenever. A task's own partition
 * would not do for the shard: it is another one after a coalesce or a union.
 */
public class MomentRdd extends RDD {
  private final String momentKey;
  private final String moment;
  private final String shardKey;

  public MomentRdd(RDD parent, String momentKey, String moment, String shardKey) {
    super(parent, scala.reflect.ClassTag$.MODULE$.apply(InternalRow.class));
    this.momentKey = momentKey;
    this.moment = moment;
    this.shardKey = shardKey;
  }

  public Partition[] getPartitions() { return firstParent(elementClassTag()).partitions(); }

  public scala.collection.Iterator compute(Partition split, TaskContext context) {
    context.getLocalProperties().setProperty(momentKey, moment);
    context.getLocalProperties().setProperty(shardKey, String.valueOf(split.index()));
    return firstParent(elementClassTag()).iterator(split, context);
  }
}
