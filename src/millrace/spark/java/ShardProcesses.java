package io.millrace;

import java.io.IOException;
import java.lang.invoke.MethodHandles;
import java.lang.invoke.MethodType;
import java.nio.channels.SocketChannel;
import java.util.HashMap;
import java.util.Iterator;
import java.util.Map;
import org.apache.spark.api.python.PythonWorker;
import org.apache.spark.api.python.PythonWorkerHandle;

/**
 * The Python processes that hold shards of real-time queries, in this executor. Spark's own factory
 * starts them, from a daemon that has loaded the kernels, so they live and end with the executor. A
 * shard keeps its process between epochs: the replicas in it are then one epoch behind, no more.
 */
public class ShardProcesses implements java.io.Serializable {
  private static final long IDLE_NS = 300L * 1000 * 1000 * 1000;
  /** Query, operator and shard -> a process that waits for its next epoch. */
  private static final Map WAITING = new HashMap();

  private final String python;
  private final String worker;
  private final String daemon;
  private final HashMap environment;

  public ShardProcesses(String python, String worker, String daemon, Map environment) {
    this.python = python;
    this.worker = worker;
    this.daemon = daemon;
    this.environment = new HashMap(environment);
  }

  /** A process, and the socket that leads to it. */
  public static class ShardProcess {
    final PythonWorker worker;
    private final PythonWorkerHandle handle;
    long usedNs = System.nanoTime();

    ShardProcess(PythonWorker worker, PythonWorkerHandle handle) {
      this.worker = worker;
      this.handle = handle;
    }

    SocketChannel channel() { return worker.channel(); }

    boolean isAlive() {
      return (handle == null || handle.isAlive()) && worker.channel().isConnected();
    }
  }

  /** The process that had the shard in the last epoch, or a new one. */
  ShardProcess take(String shard) throws IOException {
    ShardProcess waiting;
    synchronized (WAITING) {
      waiting = (ShardProcess) WAITING.remove(shard);
    }
    if (waiting != null && waiting.isAlive()) return waiting;
    if (waiting != null) end(waiting);
    return start();
  }

  /** Keeps a process for the shard's next epoch, and ends those that nobody has asked for. */
  void giveBack(String shard, ShardProcess process) {
    process.usedNs = System.nanoTime();
    ShardProcess other;
    synchronized (WAITING) {
      other = (ShardProcess) WAITING.put(shard, process);
      Iterator each = WAITING.values().iterator();
      while (each.hasNext()) {
        ShardProcess waiting = (ShardProcess) each.next();
        if (process.usedNs - waiting.usedNs > IDLE_NS) {
          each.remove();
          end(waiting);
        }
      }
    }
    if (other != null && other != process) end(other);
  }

  private ShardProcess start() throws IOException {
    Class map = scala.collection.immutable.Map.class;
    MethodType type = MethodType.methodType(scala.Tuple2.class, String.class,
        new Class[] {String.class, String.class, map, boolean.class});
    scala.Tuple2 made = (scala.Tuple2) ask("createPythonWorker", type,
        new Object[] {python, worker, daemon, settings(), Boolean.TRUE});
    PythonWorker found = (PythonWorker) made._1();
    scala.Option handle = (scala.Option) made._2();
    // Two threads use the socket, one in each direction: Spark's selector is not needed.
    if (found.selectionKey() != null) found.selectionKey().cancel();
    if (found.selector() != null) found.selector().close();
    found.channel().configureBlocking(true);
    return new ShardProcess(found,
        handle.isDefined() ? (PythonWorkerHandle) handle.get() : null);
  }

  /** Ends a process, whatever it does. */
  void end(ShardProcess process) {
    MethodType type = MethodType.methodType(void.class, String.class, new Class[] {String.class,
        String.class, scala.collection.immutable.Map.class, PythonWorker.class});
    ask("destroyPythonWorker", type,
        new Object[] {python, worker, daemon, settings(), process.worker});
  }

  private scala.collection.immutable.Map settings() {
    return (scala.collection.immutable.Map) scala.collection.immutable.Map$.MODULE$.from(
        scala.jdk.javaapi.CollectionConverters.asScala(environment));
  }

  /** SparkEnv mentions classes that Spark's jars rename, so it can only be asked by name. */
  private static Object ask(String method, MethodType type, Object[] arguments) {
    try {
      Class env = Class.forName("org.apache.spark.SparkEnv");
      MethodHandles.Lookup lookup = MethodHandles.publicLookup();
      Object here = lookup.findStatic(env, "get", MethodType.methodType(env))
          .invokeWithArguments(new Object[0]);
      return lookup.findVirtual(env, method, type).bindTo(here).invokeWithArguments(arguments);
    } catch (RuntimeException error) {
      throw error;
    } catch (Throwable error) {
      throw new IllegalStateException("a process for a shard could not be had: " + error, error);
    }
  }

  /** The id of this executor. */
  static String executor() {
    return (String) ask("executorId", MethodType.methodType(String.class), new Object[0]);
  }
}
