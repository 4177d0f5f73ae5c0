package io.millrace;

import java.util.ArrayList;
import java.util.Collections;
import java.util.Comparator;
import java.util.IdentityHashMap;
import java.util.Iterator;
import java.util.List;
import org.apache.spark.sql.connector.read.streaming.Offset;
import org.apache.spark.sql.connector.read.streaming.PartitionOffset;
import org.apache.spark.sql.connector.read.streaming.SupportsRealTimeMode;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.datasources.v2.RealTimeStreamScanExec;
import org.apache.spark.sql.internal.connector.PartitionOffsetWithIndex;

/**
 * How far the sources of a real-time batch have come. Spark finds that out after the batch, and
 * writes it to its log after the sink has committed, so the sink has to find it out by itself.
 */
public class RealTimeOffsets {
  private static class ByIndex implements Comparator {
    public int compare(Object one, Object other) {
      return Long.compare(((PartitionOffsetWithIndex) one).index(),
          ((PartitionOffsetWithIndex) other).index());
    }
  }

  /** A line per source, in the order of the query's sources, as Spark's log has them. */
  public static String reached(SparkPlan plan, scala.collection.Seq sources) {
    IdentityHashMap found = new IdentityHashMap();
    collect(plan, found);
    StringBuilder lines = new StringBuilder();
    Iterator each = scala.jdk.javaapi.CollectionConverters.asJava(sources).iterator();
    while (each.hasNext()) {
      Object source = each.next();
      Offset offset = (Offset) found.get(source);
      if (offset == null) {
        throw new IllegalStateException("the source " + source + " has not told where it is");
      }
      lines.append(lines.length() == 0 ? "" : "\n").append(offset.json());
    }
    return lines.toString();
  }

  /** How many partitions each source of a plan has. */
  public static int[] partitions(SparkPlan plan) {
    ArrayList found = new ArrayList();
    count(plan, found);
    int[] counts = new int[found.size()];
    for (int i = 0; i < counts.length; i++) counts[i] = ((Integer) found.get(i)).intValue();
    return counts;
  }

  private static void count(SparkPlan plan, List found) {
    if (plan instanceof RealTimeStreamScanExec) {
      found.add(Integer.valueOf(((RealTimeStreamScanExec) plan).inputPartitions().size()));
    }
    Iterator children =
        scala.jdk.javaapi.CollectionConverters.asJava(plan.children()).iterator();
    while (children.hasNext()) count((SparkPlan) children.next(), found);
  }

  private static void collect(SparkPlan plan, IdentityHashMap found) {
    if (plan instanceof RealTimeStreamScanExec) {
      RealTimeStreamScanExec scan = (RealTimeStreamScanExec) plan;
      List told = new ArrayList((List) scan.endOffsetsAccumulator().value());
      Collections.sort(told, new ByIndex());
      PartitionOffset[] parts = new PartitionOffset[told.size()];
      for (int i = 0; i < parts.length; i++) {
        parts[i] = ((PartitionOffsetWithIndex) told.get(i)).partitionOffset();
      }
      found.put(scan.stream(), ((SupportsRealTimeMode) scan.stream()).mergeOffsets(parts));
    }
    Iterator children =
        scala.jdk.javaapi.CollectionConverters.asJava(plan.children()).iterator();
    while (children.hasNext()) collect((SparkPlan) children.next(), found);
  }
}
