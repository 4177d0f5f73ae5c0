package io.millrace;

import java.io.UncheckedIOException;
import java.nio.channels.ClosedByInterruptException;
import java.util.EnumSet;
import java.util.HashMap;
import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.connector.catalog.SupportsWrite;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.catalog.TableProvider;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.PhysicalWriteInfo;
import org.apache.spark.sql.connector.write.Write;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.connector.write.WriterCommitMessage;
import org.apache.spark.sql.connector.write.streaming.StreamingDataWriterFactory;
import org.apache.spark.sql.connector.write.streaming.StreamingWrite;
import org.apache.spark.sql.internal.connector.SupportsStreamingUpdateAsAppend;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * The sink of a real-time query: rows go on to another sink at once, and the epoch is committed when
 * all tasks have ended, before Spark writes to its own logs. What happens at either end of an epoch
 * is in Python, behind Epochs.
 */
public class RealTimeSink implements TableProvider {
  /** The option that says which query a sink belongs to. */
  public static final String RUN = "millrace.run";
  private static final Map SINKS = new HashMap();

  /** A query, in the driver. */
  public interface Epochs {
    /** A batch is about to run; what its tasks have to know. */
    String begin(long batch);

    /** All tasks of a batch have ended well. */
    void commit(long batch);

    /** A batch has failed, or its commit has. */
    void abort(long batch);
  }

  private static class Registered {
    final Epochs epochs;
    final SupportsWrite sink;

    Registered(Epochs epochs, SupportsWrite sink) {
      this.epochs = epochs;
      this.sink = sink;
    }
  }

  /** Lets a query's epochs, and the sink that gets its rows, be found by the run's name. */
  public static void attach(String run, Epochs epochs, SupportsWrite sink) {
    synchronized (SINKS) {
      SINKS.put(run, new Registered(epochs, sink));
    }
  }

  public static void detach(String run) {
    synchronized (SINKS) {
      SINKS.remove(run);
    }
  }

  private static Registered find(String run) {
    synchronized (SINKS) {
      Registered found = (Registered) SINKS.get(run);
      if (found == null) throw new IllegalStateException("no real-time query has the name " + run);
      return found;
    }
  }

  public StructType inferSchema(CaseInsensitiveStringMap options) { return new StructType(); }

  public boolean supportsExternalMetadata() { return true; }

  public Table getTable(StructType schema, Transform[] partitioning, Map properties) {
    return new Target(schema);
  }

  private static class Target implements Table, SupportsWrite {
    private final StructType schema;

    Target(StructType schema) { this.schema = schema; }

    public String name() { return "millrace"; }

    public StructType schema() { return schema; }

    public Set capabilities() {
      return EnumSet.of(TableCapability.STREAMING_WRITE, TableCapability.ACCEPT_ANY_SCHEMA);
    }

    public WriteBuilder newWriteBuilder(LogicalWriteInfo info) {
      Registered found = find(info.options().get(RUN));
      return new Builder(found.epochs, found.sink.newWriteBuilder(info));
    }
  }

  /** Spark runs real time in update mode only; every answer is a row of its own. */
  private static class Builder implements WriteBuilder, SupportsStreamingUpdateAsAppend {
    private final Epochs epochs;
    private final WriteBuilder inner;

    Builder(Epochs epochs, WriteBuilder inner) {
      this.epochs = epochs;
      this.inner = inner;
    }

    public Write build() { return new Built(epochs, inner.build()); }
  }

  private static class Built implements Write {
    private final Epochs epochs;
    private final Write inner;

    Built(Epochs epochs, Write inner) {
      this.epochs = epochs;
      this.inner = inner;
    }

    public String description() { return "millrace in front of " + inner.description(); }

    public StreamingWrite toStreaming() { return new Stream(epochs, inner.toStreaming()); }
  }

  /** One batch. */
  private static class Stream implements StreamingWrite {
    private final Epochs epochs;
    private final StreamingWrite inner;

    Stream(Epochs epochs, StreamingWrite inner) {
      this.epochs = epochs;
      this.inner = inner;
    }

    /** Called when everything is planned and before the first task is sent. */
    public StreamingDataWriterFactory createStreamingWriterFactory(PhysicalWriteInfo info) {
      SparkSession session = (SparkSession) SparkSession.active();
      String batch = session.sparkContext().getLocalProperty("streaming.sql.batchId");
      String moment = begin(Long.parseLong(batch));
      session.sparkContext().setLocalProperty(ShardBridge.MOMENT, moment);
      return inner.createStreamingWriterFactory(info);
    }

    private String begin(long batch) {
      try {
        return epochs.begin(batch);
      } catch (RuntimeException error) {
        if (!String.valueOf(error.getMessage()).contains("StoppingError")) throw error;
        // What Spark takes for the interruption of a query that is being stopped.
        throw new UncheckedIOException(new ClosedByInterruptException());
      }
    }

    public boolean useCommitCoordinator() { return inner.useCommitCoordinator(); }

    /** State first: what the inner sink does here, it does in the driver's memory. */
    public void commit(long batch, WriterCommitMessage[] messages) {
      epochs.commit(batch);
      inner.commit(batch, messages);
    }

    public void abort(long batch, WriterCommitMessage[] messages) {
      epochs.abort(batch);
      inner.abort(batch, messages);
    }
  }
}
