package io.millrace;

import java.io.Serializable;
import java.util.Collections;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.catalog.TableProvider;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.connector.read.streaming.Offset;
import org.apache.spark.sql.connector.read.streaming.ReadLimit;
import org.apache.spark.sql.connector.read.streaming.SupportsTriggerAvailableNow;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * A source without rows that asks for a batch when Spark's own stateful operators would: when the
 * watermark has moved since the last batch, or, if it always does, whenever there is none.
 */
public class IdleBatches implements TableProvider {
  private static final ConcurrentHashMap RUNNING = new ConcurrentHashMap();

  /** A batch that runs, and the watermark that it runs with. */
  private static class Batch {
    final Object execution;
    final long watermark;

    Batch(Object execution, long watermark) {
      this.execution = execution;
      this.watermark = watermark;
    }
  }

  /** Tell the source with this token which query it is part of, and the watermark of the batch. */
  public static void attach(String token, Object execution, long watermark) {
    RUNNING.put(token, new Batch(execution, watermark));
  }

  public static void detach(String token) { RUNNING.remove(token); }

  private static Object call(Object target, String method) {
    try {
      return target.getClass().getMethod(method, new Class[0]).invoke(target, new Object[0]);
    } catch (Exception error) {
      throw new IllegalStateException(target.getClass() + " has no " + method, error);
    }
  }

  static boolean isDue(String token, boolean always) {
    Batch last = (Batch) RUNNING.get(token);
    if (last == null) return false;
    if (always) return true;
    Object tracker = call(last.execution, "watermarkTracker");
    return ((Number) call(tracker, "currentWatermark")).longValue() > last.watermark;
  }

  public StructType inferSchema(CaseInsensitiveStringMap options) { return schemaOfRows(); }

  static StructType schemaOfRows() { return new StructType().add("value", "long"); }

  public Table getTable(StructType schema, Transform[] partitioning, Map properties) {
    Object always = properties.get("always");
    return new Source((String) properties.get("token"), "true".equals(always));
  }

  /** Table, scan and stream in one. */
  public static class Source implements Table, SupportsRead, ScanBuilder, Scan, MicroBatchStream,
      SupportsTriggerAvailableNow {
    private final String token;
    private final boolean always;

    Source(String token, boolean always) {
      this.token = token;
      this.always = always;
    }

    public String name() { return "millrace-idle-batches"; }

    public StructType schema() { return schemaOfRows(); }

    public Set capabilities() { return Collections.singleton(TableCapability.MICRO_BATCH_READ); }

    public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) { return this; }

    public Scan build() { return this; }

    public StructType readSchema() { return schemaOfRows(); }

    public String description() { return name(); }

    public MicroBatchStream toMicroBatchStream(String checkpointLocation) { return this; }

    public Offset initialOffset() { return new Count(0); }

    public Offset deserializeOffset(String json) { return new Count(Long.parseLong(json)); }

    public Offset latestOffset() { return initialOffset(); }

    public Offset latestOffset(Offset start, ReadLimit limit) {
      // Nothing, rather than where it is: that would be news to a query that has not begun.
      return isDue(token, always) ? new Count(Long.parseLong(start.json()) + 1) : null;
    }

    public ReadLimit getDefaultReadLimit() { return ReadLimit.allAvailable(); }

    public Offset reportLatestOffset() { return null; }

    public void prepareForTriggerAvailableNow() { }

    public InputPartition[] planInputPartitions(Offset start, Offset end) {
      return new InputPartition[0];
    }

    public PartitionReaderFactory createReaderFactory() { return new NoRows(); }

    public void commit(Offset end) { }

    public void stop() { }
  }

  /** How many batches were asked for. */
  public static class Count extends Offset {
    private final long batches;

    Count(long batches) { this.batches = batches; }

    public String json() { return String.valueOf(batches); }
  }

  /** There is nothing to read, and so nobody asks for a reader. */
  public static class NoRows implements PartitionReaderFactory, Serializable {
    public PartitionReader createReader(InputPartition partition) {
      throw new IllegalStateException("a source without rows has no partitions");
    }
  }
}
