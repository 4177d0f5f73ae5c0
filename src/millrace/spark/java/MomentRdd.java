package io.millrace;

import java.util.Properties;
import org.apache.spark.Partition;
import org.apache.spark.TaskContext;
import org.apache.spark.rdd.RDD;
import org.apache.spark.sql.catalyst.InternalRow;

/**
 * Rows of an epoch that know their epoch and their shard: a task that computes them finds both in a
 * local property, whichever thread or job asks for the rows, and whenever. The task's own partition
 * would not do for the shard: it is another one after a coalesce or a union.
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
    tell(context.getLocalProperties(), context.taskAttemptId(), split.index());
    return firstParent(elementClassTag()).iterator(split, context);
  }

  /**
   * In local mode the tasks of a job share their properties, so each has a line of its own. It is
   * one property, because the number of properties must not change while Spark sends them.
   */
  private void tell(Properties properties, long attempt, int shard) {
    synchronized (properties) {
      String mine = attempt + " ";
      StringBuilder lines = new StringBuilder();
      String[] known = properties.getProperty(key, "").split("\n");
      for (int i = 0; i < known.length; i++) {
        if (!known[i].isEmpty() && !known[i].startsWith(mine)) lines.append(known[i]).append("\n");
      }
      properties.setProperty(key, lines.append(mine).append(shard + " " + moment).toString());
    }
  }
}
