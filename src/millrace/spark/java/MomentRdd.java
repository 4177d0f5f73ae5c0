package io.millrace;

import java.lang.invoke.MethodHandles;
import java.lang.invoke.MethodType;
import java.util.Arrays;
import java.util.Properties;
import org.apache.spark.Partition;
import org.apache.spark.TaskContext;
import org.apache.spark.rdd.RDD;
import org.apache.spark.sql.catalyst.InternalRow;

/**
 * Rows of an epoch that know their epoch, their shard and their location: a task that computes them
 * finds the first two in a local property, whichever thread or job asks for the rows, and whenever,
 * and Spark's scheduler finds the executor each partition is best computed on. The task's own
 * partition would not do for the shard: it is another one after a coalesce or a union.
 */
public class MomentRdd extends RDD {
  private final String key;
  private final String moment;
  private final String[] locations;

  /** Locations are Spark's task locations by partition, separated by commas; empty for none. */
  public MomentRdd(RDD parent, String key, String moment, String locations) {
    super(parent, scala.reflect.ClassTag$.MODULE$.apply(InternalRow.class));
    this.key = key;
    this.moment = moment;
    this.locations = locations.isEmpty() ? new String[0] : locations.split(",", -1);
  }

  /** SparkEnv mentions classes that Spark's jars rename, so it can only be asked by name. */
  private static String executor() {
    try {
      Class env = Class.forName("org.apache.spark.SparkEnv");
      MethodHandles.Lookup lookup = MethodHandles.publicLookup();
      Object here = lookup.findStatic(env, "get", MethodType.methodType(env))
          .invokeWithArguments(new Object[0]);
      return (String) lookup.findVirtual(env, "executorId", MethodType.methodType(String.class))
          .invokeWithArguments(new Object[] {here});
    } catch (Throwable error) {
      throw new IllegalStateException("cannot tell which executor this is", error);
    }
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
      lines.append(mine).append(shard).append(" ").append(executor()).append(" ").append(moment);
      properties.setProperty(key, lines.toString());
    }
  }

  public scala.collection.immutable.Seq getPreferredLocations(Partition split) {
    String[] found = split.index() < locations.length && !locations[split.index()].isEmpty()
        ? new String[] {locations[split.index()]} : new String[0];
    return scala.jdk.javaapi.CollectionConverters.asScala(Arrays.asList(found)).toList();
  }
}
