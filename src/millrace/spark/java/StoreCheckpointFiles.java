package io.millrace;

import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.util.ArrayList;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.PathFilter;
import org.apache.hadoop.fs.PositionedReadable;
import org.apache.hadoop.fs.Seekable;
import org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager;
import org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager$CancellableFSDataOutputStream;

/**
 * Spark's offset and commit logs in a location's own store, which the driver's Python has open.
 *
 * Spark would open the location through Hadoop: with another client, other credentials, jars that
 * few installations have, and on object stores with a rename that is a copy. Here both logs are
 * written as the manifests are, and a file that exists is refused by the store itself.
 * The logs are small, and only the driver uses them.
 */
public class StoreCheckpointFiles implements CheckpointFileManager {

  /** A store, on the Python side. Paths are relative to the location. */
  public interface Files {
    /** Whether the file is written; not if it exists and may not be overwritten. */
    boolean write(String path, byte[] data, boolean overwrite);

    /** The content, or null if there is no such file. */
    byte[] read(String path);

    /** Whether there is such a file, or a file below such a folder. */
    boolean exists(String path);

    /** The names in a folder, a line each; those of folders end with a slash. */
    String names(String folder);

    /** Remove a file, or all files of a folder. */
    void remove(String path);
  }

  private static final Map OPENED = new ConcurrentHashMap();

  /** From now on, paths below a URL are a store's. */
  public static void attach(String url, Files files) {
    OPENED.put(new Path(url).toString(), files);
  }

  private final Path root;
  private final String url;
  private final Files files;

  public StoreCheckpointFiles(Path path, Configuration conf) throws IOException {
    this.root = path;
    String below = path.toString();
    while (below != null && !OPENED.containsKey(below)) {
      int end = below.lastIndexOf('/');
      below = end < 0 ? null : below.substring(0, end);
    }
    if (below == null) throw new IOException(path + " is not in a location that is open here");
    this.url = below;
    this.files = (Files) OPENED.get(below);
  }

  private String relative(Path path) {
    String whole = path.toString();
    if (!whole.startsWith(url + "/")) {
      throw new IllegalArgumentException(whole + " is not in the location " + url);
    }
    return whole.substring(url.length() + 1);
  }

  public CheckpointFileManager$CancellableFSDataOutputStream createAtomic(Path path, boolean overwrite) {
    try {
      return new Draft(new ByteArrayOutputStream(), files, relative(path), overwrite);
    } catch (IOException e) {
      throw StoreCheckpointFiles.unchecked(e);
    }
  }

  public FSDataInputStream open(Path path) {
    byte[] found = files.read(relative(path));
    if (found == null) throw StoreCheckpointFiles.unchecked(new FileNotFoundException(path.toString()));
    return new FSDataInputStream(new Content(found));
  }

  public FileStatus[] list(Path path, PathFilter filter) {
    ArrayList found = new ArrayList();
    String[] names = files.names(relative(path)).split("\n");
    for (int i = 0; i < names.length; i++) {
      if (names[i].isEmpty()) continue;
      boolean folder = names[i].endsWith("/");
      Path each = new Path(path, folder ? names[i].substring(0, names[i].length() - 1) : names[i]);
      if (filter.accept(each)) found.add(new FileStatus(0L, folder, 1, 1L, 0L, each));
    }
    return (FileStatus[]) found.toArray(new FileStatus[0]);
  }

  public FileStatus[] list(Path path) { return list(path, new Everything()); }

  /** A folder is there when a file is in it. */
  public void mkdirs(Path path) {}

  public boolean exists(Path path) { return files.exists(relative(path)); }

  public void delete(Path path) { files.remove(relative(path)); }

  public boolean isLocal() { return false; }

  public Path createCheckpointDirectory() { return root; }

  public void close() {}

  /** Scala's trait declares no checked exceptions, but its callers catch them by type. */
  private static RuntimeException unchecked(Throwable error) {
    org.apache.spark.unsafe.Platform.throwException(error);
    return new RuntimeException(error);
  }

  private static class Everything implements PathFilter {
    public boolean accept(Path path) { return true; }
  }

  /** A file that is written when it is closed. */
  private static class Draft extends CheckpointFileManager$CancellableFSDataOutputStream {
    private final ByteArrayOutputStream content;
    private final Files files;
    private final String path;
    private final boolean overwrite;
    private boolean done = false;

    Draft(ByteArrayOutputStream content, Files files, String path, boolean overwrite) throws IOException {
      super(content);
      this.content = content;
      this.files = files;
      this.path = path;
      this.overwrite = overwrite;
    }

    public synchronized void close() throws IOException {
      if (done) return;
      done = true;
      if (!files.write(path, content.toByteArray(), overwrite)) {
        throw new org.apache.hadoop.fs.FileAlreadyExistsException("File " + path + " already exists");
      }
    }

    public synchronized void cancel() { done = true; }
  }

  /** A whole file, as Hadoop's streams want it. */
  private static class Content extends ByteArrayInputStream implements Seekable, PositionedReadable {
    Content(byte[] data) { super(data); }

    public void seek(long position) { pos = (int) Math.min(position, count); }

    public long getPos() { return pos; }

    public boolean seekToNewSource(long target) { return false; }

    public int read(long position, byte[] buffer, int offset, int length) {
      int left = count - (int) position;
      if (left <= 0) return -1;
      int size = Math.min(left, length);
      System.arraycopy(buf, (int) position, buffer, offset, size);
      return size;
    }

    public void readFully(long position, byte[] buffer, int offset, int length) throws IOException {
      if (read(position, buffer, offset, length) < length) throw new java.io.EOFException();
    }

    public void readFully(long position, byte[] buffer) throws IOException {
      readFully(position, buffer, 0, buffer.length);
    }
  }
}
