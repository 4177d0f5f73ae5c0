package io.millrace;

import java.io.BufferedInputStream;
import java.io.BufferedOutputStream;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.nio.ByteBuffer;
import java.nio.channels.Channels;
import java.nio.channels.SocketChannel;
import java.nio.charset.StandardCharsets;
import java.util.Collections;
import java.util.Iterator;
import java.util.List;
import java.util.concurrent.ArrayBlockingQueue;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.vector.FieldVector;
import org.apache.arrow.vector.VectorLoader;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.VectorUnloader;
import org.apache.arrow.vector.ipc.ReadChannel;
import org.apache.arrow.vector.ipc.WriteChannel;
import org.apache.arrow.vector.ipc.message.ArrowRecordBatch;
import org.apache.arrow.vector.ipc.message.MessageSerializer;
import org.apache.arrow.vector.types.pojo.Schema;
import org.apache.spark.TaskContext;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.execution.arrow.ArrowWriter;
import org.apache.spark.sql.execution.arrow.ArrowWriter$;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.ArrowUtils$;
import org.apache.spark.sql.vectorized.ArrowColumnVector;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import org.apache.spark.util.CollectionAccumulator;
import org.apache.spark.util.TaskCompletionListener;

/**
 * One epoch of one shard: three threads between a Spark task and the process of its shard.
 *
 *     feeder   takes rows from the task's input and puts them into an Arrow batch
 *     sender   sends what has come since the last batch, as soon as the process can take more
 *     reader   takes answers from the process; the task's own thread turns them into rows
 *
 * A batch is therefore what arrived while the one before was applied: one row on a quiet stream,
 * thousands on a busy one. At most WINDOW batches are under way and at most MOST_ROWS rows wait, so
 * a slow process or a slow sink slows down the source. `millrace.spark.realtime.frames` is the other
 * end.
 *
 * Invariant: the iterator ends only after the process has reported, or raises.
 */
public class ShardSession extends scala.collection.AbstractIterator {
  /** What all shards of an operator have in common. */
  public static class Shards implements java.io.Serializable {
    final String query;
    final String operator;
    final byte[] task;
    final StructType input;
    final StructType output;
    final String zone;
    final long answerMs;
    final ShardProcesses processes;
    final CollectionAccumulator reports;

    public Shards(String query, String operator, byte[] task, StructType input, StructType output,
        String zone, long answerMs, ShardProcesses processes, CollectionAccumulator reports) {
      this.query = query;
      this.operator = operator;
      this.task = task;
      this.input = input;
      this.output = output;
      this.zone = zone;
      this.answerMs = answerMs;
      this.processes = processes;
      this.reports = reports;
    }
  }

  private static final int OPEN = 1;
  private static final int ROWS = 2;
  private static final int END = 3;
  private static final int OPENED = 4;
  private static final int ANSWER = 5;
  private static final int DONE = 6;
  private static final int REPORT = 7;
  private static final int FAILED = 8;

  private static final int WINDOW = 2;
  private static final int MOST_ROWS = 1 << 15;
  private static final int MOST_ANSWERS = 64;
  private static final long POLL_MS = 100;

  private final Shards shards;
  private final TaskContext context;
  private final scala.collection.Iterator rows;
  private final int shard;
  private final String key;
  private final ShardProcesses.ShardProcess process;
  private final DataOutputStream out;
  private final DataInputStream in;

  private final Object lock = new Object();
  private final BufferAllocator sending;
  private final ArrowWriter writer;
  private int filled = 0;
  private boolean isInputOver = false;

  private final Semaphore window = new Semaphore(WINDOW);
  private final BlockingQueue answers = new ArrayBlockingQueue(MOST_ANSWERS);
  /** How many frames the process owes an answer, and since when nothing has come. */
  private int owed = 0;
  private long heardNs = System.nanoTime();

  private volatile Throwable failure = null;
  private volatile boolean isClosed = false;
  private volatile long pid = -1;
  private final Thread[] threads;

  private final BufferAllocator receiving;
  private final VectorSchemaRoot answer;
  private final ColumnarBatch columns;
  private Iterator current = Collections.emptyIterator();
  private boolean isOver = false;

  ShardSession(Shards shards, TaskContext context, String moment,
      scala.collection.Iterator rows) {
    this.shards = shards;
    this.context = context;
    this.rows = rows;
    this.shard = context.partitionId();
    this.key = shards.query + "/" + shards.operator + "/" + shard;
    Schema given = arrow(shards.input);
    BufferAllocator root = ArrowUtils$.MODULE$.rootAllocator();
    sending = root.newChildAllocator("millrace to shard " + key, 0, Long.MAX_VALUE);
    receiving = root.newChildAllocator("millrace from shard " + key, 0, Long.MAX_VALUE);
    writer = ArrowWriter$.MODULE$.create(VectorSchemaRoot.create(given, sending));
    answer = VectorSchemaRoot.create(arrow(shards.output), receiving);
    List vectors = answer.getFieldVectors();
    ColumnVector[] wrapped = new ColumnVector[vectors.size()];
    for (int i = 0; i < wrapped.length; i++) {
      wrapped[i] = new ArrowColumnVector((FieldVector) vectors.get(i));
    }
    columns = new ColumnarBatch(wrapped);
    try {
      process = shards.processes.take(key);
      out = new DataOutputStream(
          new BufferedOutputStream(new To(process.channel()), 1 << 16));
      in = new DataInputStream(
          new BufferedInputStream(new From(process.channel()), 1 << 16));
      open(moment, given);
    } catch (IOException error) {
      release();
      throw new RuntimeException(said("could not be opened: " + error), error);
    }
    threads = new Thread[] {new Feeder(), new Sender(), new Reader()};
    context.addTaskCompletionListener(new Closing());
    for (int i = 0; i < threads.length; i++) {
      threads[i].setDaemon(true);
      threads[i].start();
    }
  }

  /**
   * A socket's two directions as streams. Those of Java's Channels share a lock, so that nobody could
   * write while somebody waits for something to read.
   */
  private static class From extends InputStream {
    private final SocketChannel channel;

    From(SocketChannel channel) { this.channel = channel; }

    public int read(byte[] bytes, int offset, int length) throws IOException {
      return channel.read(ByteBuffer.wrap(bytes, offset, length));
    }

    public int read() throws IOException {
      byte[] one = new byte[1];
      return read(one, 0, 1) < 0 ? -1 : one[0] & 255;
    }
  }

  private static class To extends OutputStream {
    private final SocketChannel channel;

    To(SocketChannel channel) { this.channel = channel; }

    public void write(byte[] bytes, int offset, int length) throws IOException {
      ByteBuffer left = ByteBuffer.wrap(bytes, offset, length);
      while (left.hasRemaining()) channel.write(left);
    }

    public void write(int one) throws IOException { write(new byte[] {(byte) one}, 0, 1); }
  }

  private Schema arrow(StructType type) {
    return ArrowUtils$.MODULE$.toArrowSchema(type, shards.zone, true, false, false);
  }

  private void open(String moment, Schema given) throws IOException {
    ByteArrayOutputStream schema = new ByteArrayOutputStream();
    MessageSerializer.serialize(new WriteChannel(Channels.newChannel(schema)), given);
    byte[][] parts = new byte[][] {
        Integer.toString(shard).getBytes(StandardCharsets.UTF_8),
        ShardProcesses.executor().getBytes(StandardCharsets.UTF_8),
        moment.getBytes(StandardCharsets.UTF_8), schema.toByteArray(), shards.task};
    owe();
    out.writeByte(OPEN);
    out.writeInt(parts.length);
    for (int i = 0; i < parts.length; i++) {
      out.writeInt(parts[i].length);
      out.write(parts[i]);
    }
    out.flush();
  }

  private void owe() {
    synchronized (window) {
      if (owed++ == 0) heardNs = System.nanoTime();
    }
  }

  private void heard(boolean isAnswered) {
    synchronized (window) {
      heardNs = System.nanoTime();
      if (isAnswered) owed--;
    }
  }

  private boolean isStuck() {
    synchronized (window) {
      return owed > 0 && System.nanoTime() - heardNs > shards.answerMs * 1000L * 1000L;
    }
  }

  /** The first error is the cause; those after it are its consequences. */
  private void fail(Throwable error) {
    synchronized (lock) {
      if (failure == null && !isClosed) failure = error;
      lock.notifyAll();
    }
  }

  private String said(String what) {
    return "millrace.realtime: shard " + shard + " of operator '" + shards.operator + "' " + what
        + " /millrace.realtime";
  }

  private String processName() { return pid < 0 ? "its Python process" : "its Python process " + pid; }

  private class Feeder extends Thread {
    Feeder() { super("millrace-feeder-" + key); }

    public void run() {
      try {
        // What Spark's own iterators ask for is bound to a thread.
        tellContext();
        while (!isClosed && rows.hasNext()) take((InternalRow) rows.next());
        synchronized (lock) {
          isInputOver = true;
          lock.notifyAll();
        }
      } catch (Throwable error) {
        fail(error);
      }
    }
  }

  private void tellContext() throws Exception {
    Class companion = Class.forName("org.apache.spark.TaskContext$");
    Object module = companion.getField("MODULE$").get(null);
    companion.getMethod("setTaskContext", new Class[] {TaskContext.class})
        .invoke(module, new Object[] {context});
  }

  private void take(InternalRow row) throws InterruptedException {
    synchronized (lock) {
      while (filled >= MOST_ROWS && failure == null && !isClosed) lock.wait();
      writer.write(row);
      if (filled++ == 0) lock.notifyAll();
    }
  }

  private class Sender extends Thread {
    Sender() { super("millrace-sender-" + key); }

    public void run() {
      try {
        while (await()) {
          window.acquire();
          byte[] batch = drain();
          owe();
          send(ROWS, batch);
        }
        if (failure == null && !isClosed) {
          owe();
          send(END, new byte[0]);
        }
      } catch (Throwable error) {
        fail(error instanceof IOException ? ended(error) : error);
      }
    }

    /** Waits for rows; false if no more are to come. */
    private boolean await() throws InterruptedException {
      synchronized (lock) {
        while (filled == 0 && !isInputOver && failure == null && !isClosed) lock.wait();
        return filled > 0 && failure == null && !isClosed;
      }
    }
  }

  private byte[] drain() throws IOException {
    ByteArrayOutputStream bytes = new ByteArrayOutputStream(1 << 12);
    synchronized (lock) {
      writer.finish();
      ArrowRecordBatch batch = new VectorUnloader(writer.root()).getRecordBatch();
      try {
        MessageSerializer.serialize(new WriteChannel(Channels.newChannel(bytes)), batch);
      } finally {
        batch.close();
      }
      writer.reset();
      filled = 0;
      lock.notifyAll();
    }
    return bytes.toByteArray();
  }

  private void send(int kind, byte[] bytes) throws IOException {
    out.writeByte(kind);
    out.writeInt(bytes.length);
    out.write(bytes);
    out.flush();
  }

  private Throwable ended(Throwable error) {
    return new RuntimeException(said("lost " + processName() + ", which has ended. Nothing of this "
        + "epoch is committed; it runs again"), error);
  }

  private class Reader extends Thread {
    Reader() { super("millrace-reader-" + key); }

    public void run() {
      try {
        while (!isClosed) {
          int kind = in.readUnsignedByte();
          byte[] bytes = new byte[in.readInt()];
          in.readFully(bytes);
          heard(kind != ANSWER);
          if (kind == ANSWER) {
            answers.put(bytes);
          } else if (kind == DONE) {
            window.release();
          } else if (kind == OPENED) {
            pid = Long.parseLong(new String(bytes, StandardCharsets.UTF_8));
          } else if (kind == FAILED) {
            throw new RuntimeException(new String(bytes, StandardCharsets.UTF_8));
          } else {
            answers.put(new Report(bytes));
            return;
          }
        }
      } catch (IOException error) {
        fail(ended(error));
      } catch (Throwable error) {
        fail(error);
      }
    }
  }

  private static class Report {
    final byte[] bytes;

    Report(byte[] bytes) { this.bytes = bytes; }
  }

  public boolean hasNext() {
    while (!current.hasNext() && !isOver) {
      Object next = null;
      try {
        next = answers.poll(POLL_MS, TimeUnit.MILLISECONDS);
      } catch (InterruptedException error) {
        context.killTaskIfInterrupted();
        throw new RuntimeException(error);
      }
      if (next instanceof Report) {
        end((Report) next);
      } else if (next != null) {
        load((byte[]) next);
      } else {
        look();
      }
    }
    return !isOver;
  }

  /** While no answer comes: is everybody well? */
  private void look() {
    context.killTaskIfInterrupted();
    if (failure == null && isStuck()) {
      fail(new RuntimeException(said("has not answered for " + shards.answerMs / 1000
          + " seconds, so " + processName() + " is ended. Nothing of this epoch is committed. If "
          + "its rows take that long, raise spark.millrace.realTime.answerSeconds")));
    }
    if (failure != null) {
      if (failure instanceof RuntimeException) throw (RuntimeException) failure;
      throw new RuntimeException(failure);
    }
  }

  private void load(byte[] bytes) {
    try {
      ArrowRecordBatch batch = MessageSerializer.deserializeRecordBatch(
          new ReadChannel(Channels.newChannel(new ByteArrayInputStream(bytes))), receiving);
      try {
        new VectorLoader(answer).load(batch);
      } finally {
        batch.close();
      }
    } catch (IOException error) {
      throw new RuntimeException(said("sent an answer that cannot be read"), error);
    }
    columns.setNumRows(answer.getRowCount());
    current = columns.rowIterator();
  }

  private void end(Report report) {
    shards.reports.add(report.bytes);
    isOver = true;
    shards.processes.giveBack(key, process);
  }

  public Object next() {
    if (!hasNext()) throw new java.util.NoSuchElementException();
    // Without generated code Spark asks for values of a row without asking whether they are NULL, and
    // a row of a columnar batch does not look. A copy has NULLs as nulls.
    return ((InternalRow) current.next()).copy();
  }

  private class Closing implements TaskCompletionListener {
    public void onTaskCompletion(TaskContext context) {
      synchronized (lock) {
        isClosed = true;
        lock.notifyAll();
      }
      // A process that has not reported may be anywhere in its epoch: the next attempt gets a new one.
      if (!isOver) shards.processes.end(process);
      for (int i = 0; i < threads.length; i++) threads[i].interrupt();
      boolean isInterrupted = false;
      for (int i = 0; i < threads.length; i++) {
        try {
          threads[i].join(10L * 1000);
        } catch (InterruptedException error) {
          isInterrupted = true;
        }
      }
      release();
      if (isInterrupted) Thread.currentThread().interrupt();
    }
  }

  private void release() {
    synchronized (lock) {
      writer.root().close();
      answer.close();
      sending.close();
      receiving.close();
    }
  }
}
