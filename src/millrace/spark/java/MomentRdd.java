package io.millrace;

import java.lang.invoke.MethodHandles;
import java.lang.invoke.MethodType;
import java.util.Arrays;
import org.apache.spark.Partition;
import org.apache.spark.TaskContext;
import org.apache.spark.rdd.RDD;
import org.apache.spark.sql.catalyst.InternalRow;

/**
 * Rows of an epoch that know their epoch and their place: a task that computes them finds the
 * moment in a local property, whichever thread or job asks for the rows, and whenever; and Spark's
 * scheduler finds the executor each partition is best computed on.
 */
public class MomentRdd extends RDD {
  public static final String EXECUTOR = "millrace.executor";
  private final String key;
  private final String moment;
  private final String[] places;

  /** Places are Spark's task locations by partition, separated by commas; empty for none. */
  public MomentRdd(RDD parent, String key, String moment, String places) {
    super(parent, scala.reflect.ClassTag$.MODULE$.apply(InternalRow.class));
    this.key = key;
    this.moment = moment;
    this.places = places.isEmpty() ? new String[0] : places.split(",", -1);
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
    context.getLocalProperties().setProperty(key, moment);
    context.getLocalProperties().setProperty(EXECUTOR, executor());
    return firstParent(elementClassTag()).iterator(split, context);
  }

  public scala.collection.immutable.Seq getPreferredLocations(Partition split) {
    String[] found = split.index() < places.length && !places[split.index()].isEmpty()
        ? new String[] {places[split.index()]} : new String[0];
    return scala.jdk.javaapi.CollectionConverters.asScala(Arrays.asList(found)).toList();
  }
}
