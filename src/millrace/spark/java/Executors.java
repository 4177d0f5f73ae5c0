package io.millrace;

import org.apache.spark.SparkContext;
import org.apache.spark.status.api.v1.ExecutorSummary;

/** Who is alive, in one call; and the calls that Spark's dynamic allocation makes. */
public class Executors {
  /** Lines of id, host and cores, separated by tabs. */
  public static String alive(SparkContext context) {
    StringBuilder found = new StringBuilder();
    scala.collection.Iterator each = context.statusStore().executorList(true).iterator();
    while (each.hasNext()) {
      ExecutorSummary executor = (ExecutorSummary) each.next();
      String host = executor.hostPort();
      int colon = host.lastIndexOf(':');
      found.append(executor.id()).append('\t')
          .append(colon < 0 ? host : host.substring(0, colon)).append('\t')
          .append(executor.totalCores()).append('\n');
    }
    return found.toString();
  }

  /** Asks for this total number of executors. */
  public static boolean request(SparkContext context, int total) {
    scala.collection.immutable.Map nowhere = scala.collection.immutable.Map$.MODULE$.empty();
    return context.requestTotalExecutors(total, 0, nowhere);
  }

  /** Gives executors back, and does not want others for them. */
  public static boolean release(SparkContext context, String ids) {
    return context.killExecutors(scala.jdk.javaapi.CollectionConverters.asScala(
        java.util.Arrays.asList(ids.split(","))).toList());
  }
}
