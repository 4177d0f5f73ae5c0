package io.millrace;

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Collections;
import java.util.HashMap;
import java.util.Iterator;
import java.util.Map;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.InterruptException;
import org.apache.kafka.common.errors.TimeoutException;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.spark.TaskContext;
import org.apache.spark.api.java.JavaRDD;
import org.apache.spark.api.java.function.VoidFunction;
import org.apache.spark.rdd.RDD;
import org.apache.spark.sql.catalyst.InternalRow;

/**
 * Writes a partition of a batch to a topic in one transaction, once: the transaction ends with a
 * marker, the number of the batch, in this writer's own partition of the topic of markers.
 *
 * A writer is a partition number, and its transactional id has that number. A writer that begins
 * fences all earlier ones of its number. Whatever these have begun is committed or aborted by then,
 * so the last marker says whether the batch is there. A writer that has just written the batch
 * before knows that without asking, and its process keeps it for the next batch of the same run.
 */
public class KafkaTransactions implements VoidFunction {
  private static final long IDLE_NS = 300L * 1000 * 1000 * 1000;
  /** Transactional id -> a writer that waits for its next batch. */
  private static final Map WAITING = new HashMap();

  private final HashMap settings;
  private final String topic;
  private final String markers;
  private final String query;
  private final String run;
  private final long batch;
  private final String[] headers;

  private KafkaTransactions(Map settings, String topic, String markers, String query, String run,
      long batch, String[] headers) {
    this.settings = new HashMap(settings);
    this.topic = topic;
    this.markers = markers;
    this.query = query;
    this.run = run;
    this.batch = batch;
    this.headers = headers;
  }

  /** Rows are key, value and headers, all binary. Headers' names are separated by line feeds. */
  public static void write(RDD rows, Map settings, String topic, String markers, String query,
      String run, long batch, String headers) {
    String[] names = headers.isEmpty() ? new String[0] : headers.split("\n");
    new JavaRDD(rows, scala.reflect.ClassTag$.MODULE$.apply(InternalRow.class))
        .foreachPartition(
            new KafkaTransactions(settings, topic, markers, query, run, batch, names));
  }

  private static class Writer {
    KafkaProducer producer;
    String run;
    long done;
    long usedNs;
  }

  public void call(Object given) throws Exception {
    Iterator rows = (Iterator) given;
    int number = TaskContext.getPartitionId();
    String id = markers + "-" + number;
    if (!rows.hasNext()) {
      skip(id);
      return;
    }
    Writer writer = null;
    try {
      writer = take(id, number);
      if (writer.done > batch) {
        throw new IllegalStateException("it has batch " + writer.done + " of this query already, "
            + "so the location was restored from a backup, or another driver runs on it");
      }
      if (writer.done == batch) {
        // The rows are there, but what computes them must run all the same.
        while (rows.hasNext()) rows.next();
      } else {
        send(writer, rows, number);
      }
    } catch (Throwable error) {
      if (writer != null) abandon(writer.producer, error);
      throw plain(error);
    }
    writer.done = batch;
    giveBack(id, writer);
  }

  /** Ends a transaction that failed: while it is open, readers wait at its beginning. */
  private static void abandon(KafkaProducer producer, Throwable error) {
    try {
      // After a time-out this would wait for as long again; the next writer aborts it.
      if (error instanceof KafkaException && !(error instanceof TimeoutException)) {
        producer.abortTransaction();
      }
    } catch (RuntimeException another) {
      error.addSuppressed(another);
    } finally {
      producer.close(Duration.ZERO);
    }
  }

  /** The driver cannot read an error with a class of Kafka's in it, whose jar Spark has added. */
  private static Exception plain(Throwable error) {
    Exception said;
    if (error instanceof InterruptException) {
      said = new InterruptedException("the task was stopped");
    } else if (error instanceof KafkaException || error instanceof IllegalStateException) {
      said = new RuntimeException("millrace.kafka: " + reason(error) + " /millrace.kafka");
    } else {
      return error instanceof Exception ? (Exception) error : new RuntimeException(error);
    }
    said.setStackTrace(error.getStackTrace());
    return said;
  }

  private void send(Writer writer, Iterator rows, int number) {
    KafkaProducer producer = writer.producer;
    producer.beginTransaction();
    while (rows.hasNext()) {
      InternalRow row = (InternalRow) rows.next();
      ProducerRecord record = new ProducerRecord(topic, binary(row, 0), binary(row, 1));
      for (int i = 0; i < headers.length; i++) {
        record.headers().add(headers[i], binary(row, i + 2));
      }
      producer.send(record);
    }
    byte[] value = Long.toString(batch).getBytes(StandardCharsets.UTF_8);
    byte[] key = query.getBytes(StandardCharsets.UTF_8);
    producer.send(new ProducerRecord(markers, Integer.valueOf(number), key, value));
    // Raises what any of the sends has met.
    producer.commitTransaction();
  }

  private static byte[] binary(InternalRow row, int column) {
    return row.isNullAt(column) ? null : row.getBinary(column);
  }

  private static String reason(Throwable error) {
    if (!(error instanceof KafkaException)) return error.getMessage();
    Throwable deepest = error;
    while (deepest.getCause() instanceof KafkaException) deepest = deepest.getCause();
    return deepest.getClass().getSimpleName() + ": " + deepest.getMessage();
  }

  /** A batch without rows for this writer: it stays ready for the next one. */
  private void skip(String id) {
    synchronized (WAITING) {
      Writer waiting = (Writer) WAITING.get(id);
      if (waiting != null && isNext(waiting)) waiting.done = batch;
    }
  }

  private Writer take(String id, int number) {
    Writer waiting;
    synchronized (WAITING) {
      waiting = (Writer) WAITING.remove(id);
    }
    if (waiting != null && isNext(waiting) && !isIdle(waiting)) return waiting;
    if (waiting != null) waiting.producer.close(Duration.ZERO);
    Map own = new HashMap(settings);
    own.put("transactional.id", id);
    Writer fresh = new Writer();
    fresh.run = run;
    fresh.producer = new KafkaProducer(own, new ByteArraySerializer(), new ByteArraySerializer());
    boolean isReady = false;
    try {
      fresh.producer.initTransactions();
      fresh.done = lastMarker(number);
      isReady = true;
    } finally {
      if (!isReady) fresh.producer.close(Duration.ZERO);
    }
    return fresh;
  }

  /** Whether a writer did the batch before, in this life of the query: nobody came in between. */
  private boolean isNext(Writer writer) {
    return writer.done == batch - 1 && writer.run.equals(run);
  }

  private static boolean isIdle(Writer writer) { return System.nanoTime() - writer.usedNs > IDLE_NS; }

  private static void giveBack(String id, Writer writer) {
    writer.usedNs = System.nanoTime();
    synchronized (WAITING) {
      Writer other = (Writer) WAITING.put(id, writer);
      if (other != null) other.producer.close(Duration.ZERO);
      Iterator each = WAITING.values().iterator();
      while (each.hasNext()) {
        Writer waiting = (Writer) each.next();
        if (isIdle(waiting)) {
          waiting.producer.close(Duration.ZERO);
          each.remove();
        }
      }
    }
  }

  /** The last committed marker of a writer, -1 if it has none. */
  private long lastMarker(int number) {
    Map own = new HashMap();
    Iterator each = settings.entrySet().iterator();
    while (each.hasNext()) {
      Map.Entry entry = (Map.Entry) each.next();
      if (!isProducers((String) entry.getKey())) own.put(entry.getKey(), entry.getValue());
    }
    own.put("isolation.level", "read_committed");
    own.put("enable.auto.commit", "false");
    own.put("allow.auto.create.topics", "false");
    KafkaConsumer consumer =
        new KafkaConsumer(own, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    try {
      TopicPartition partition = new TopicPartition(markers, number);
      consumer.assign(Collections.singletonList(partition));
      long first = offset(consumer.beginningOffsets(Collections.singletonList(partition)));
      long end = offset(consumer.endOffsets(Collections.singletonList(partition)));
      // A transaction leaves two offsets, and more of those that were aborted.
      for (long back = 16; end > first; back *= 4) {
        long start = Math.max(first, end - back);
        long found = lastBetween(consumer, partition, start, end);
        if (found >= 0 || start == first) return found;
      }
      return -1;
    } finally {
      consumer.close(Duration.ZERO);
    }
  }

  private long lastBetween(KafkaConsumer consumer, TopicPartition partition, long start, long end) {
    long found = -1;
    long deadline = System.nanoTime() + 60L * 1000 * 1000 * 1000;
    consumer.seek(partition, start);
    while (consumer.position(partition) < end) {
      if (System.nanoTime() > deadline) {
        throw new TimeoutException("the markers in " + partition + " could not be read");
      }
      Iterator records = consumer.poll(Duration.ofMillis(200)).iterator();
      while (records.hasNext()) {
        ConsumerRecord record = (ConsumerRecord) records.next();
        found = Long.parseLong(new String((byte[]) record.value(), StandardCharsets.UTF_8));
      }
    }
    return found;
  }

  private static long offset(Map offsets) {
    return ((Long) offsets.values().iterator().next()).longValue();
  }

  private static boolean isProducers(String name) {
    return name.startsWith("transaction") || name.equals("acks") || name.equals("linger.ms")
        || name.equals("enable.idempotence") || name.equals("delivery.timeout.ms");
  }
}
