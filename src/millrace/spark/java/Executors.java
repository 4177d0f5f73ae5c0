package io.millrace;

import org.apache.spark.SparkContext;
import org.apache.spark.status.api.v1.ExecutorSummary;
import org.apache.spark.status.api.v1.JobData;
import org.apache.spark.status.api.v1.TaskData;

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

  /** The errors of tasks that failed in the same job as a stage, as far as Spark has heard of them. */
  public static String failures(SparkContext context, int stage) {
    StringBuilder found = new StringBuilder();
    scala.collection.Iterator jobs = context.statusStore().jobsList(null).iterator();
    while (jobs.hasNext()) {
      JobData job = (JobData) jobs.next();
      if (job.stageIds().contains(Integer.valueOf(stage))) found.append(failures(context, job));
    }
    return found.toString();
  }

  /** The errors of tasks that failed in the newest job of a group, likewise. */
  public static String newestFailures(SparkContext context, String group) {
    JobData newest = null;
    scala.collection.Iterator jobs = context.statusStore().jobsList(null).iterator();
    while (jobs.hasNext()) {
      JobData job = (JobData) jobs.next();
      if (!job.jobGroup().isDefined() || !job.jobGroup().get().equals(group)) continue;
      if (newest == null || job.jobId() > newest.jobId()) newest = job;
    }
    return newest == null ? "" : failures(context, newest);
  }

  private static String failures(SparkContext context, JobData job) {
    StringBuilder found = new StringBuilder();
    scala.collection.Iterator stages = job.stageIds().iterator();
    while (stages.hasNext()) {
      int id = ((Integer) stages.next()).intValue();
      scala.collection.Iterator tasks =
          context.statusStore().taskList(id, 0, Integer.MAX_VALUE).iterator();
      while (tasks.hasNext()) {
        scala.Option error = ((TaskData) tasks.next()).errorMessage();
        if (error.isDefined()) found.append(error.get()).append('\n');
      }
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
