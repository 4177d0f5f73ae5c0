package io.millrace;

import java.io.IOException;
import java.io.OutputStream;
import java.nio.channels.Channels;
import java.nio.channels.FileChannel;
import java.nio.file.CopyOption;
import java.nio.file.Files;
import java.nio.file.LinkOption;
import java.nio.file.NoSuchFileException;
import java.nio.file.OpenOption;
import java.nio.file.StandardCopyOption;
import java.nio.file.StandardOpenOption;
import java.nio.file.attribute.FileAttribute;
import java.util.UUID;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.PathFilter;
import org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager;
import org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager$;
import org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager$CancellableFSDataOutputStream;

/**
 * Spark's offset and commit logs on a local file system, written through java.nio.
 *
 * Hadoop's local file system starts a process for every permission bit it sets (chmod, readlink):
 * ten per file. This writes the same files under the same names with plain system calls, and syncs
 * them, so that a batch's offsets are as durable as the manifest that says the batch was applied.
 * Beside each it writes the checksum file that Hadoop would, with one checksum for all of it:
 * Millrace verifies them before a query starts.
 * Paths that are not local go to Spark's default.
 */
public class LocalCheckpointFiles implements CheckpointFileManager {
  private static final String KEY = "spark.sql.streaming.checkpointFileManagerClass";
  private final CheckpointFileManager other;
  private final boolean local;

  public LocalCheckpointFiles(Path path, Configuration conf) throws IOException {
    Configuration rest = new Configuration(conf);
    rest.unset(KEY);
    this.other = CheckpointFileManager$.MODULE$.create(path, rest);
    String scheme = path.toUri().getScheme();
    if (scheme == null) scheme = FileSystem.getDefaultUri(conf).getScheme();
    this.local = "file".equals(scheme);
  }

  private static java.nio.file.Path nio(Path path) {
    return java.nio.file.Paths.get(path.toUri().getPath(), new String[0]);
  }

  public CheckpointFileManager$CancellableFSDataOutputStream createAtomic(Path path, boolean overwrite) {
    if (!local) return other.createAtomic(path, overwrite);
    try {
      java.nio.file.Path target = nio(path);
      java.nio.file.Path draft =
          target.resolveSibling("." + target.getFileName() + "." + UUID.randomUUID() + ".tmp");
      OpenOption[] fresh = new OpenOption[] {StandardOpenOption.CREATE_NEW, StandardOpenOption.WRITE};
      FileChannel channel;
      try {
        channel = FileChannel.open(draft, fresh);
      } catch (NoSuchFileException e) {
        Files.createDirectories(target.getParent(), new FileAttribute[0]);
        channel = FileChannel.open(draft, fresh);
      }
      return new Draft(channel, new java.io.BufferedOutputStream(Channels.newOutputStream(channel), 8192),
          draft, target, overwrite);
    } catch (IOException e) {
      throw LocalCheckpointFiles.unchecked(e);
    }
  }

  public FSDataInputStream open(Path path) { return other.open(path); }

  public FileStatus[] list(Path path, PathFilter filter) { return other.list(path, filter); }

  public FileStatus[] list(Path path) { return other.list(path); }

  public void mkdirs(Path path) {
    if (!local) {
      other.mkdirs(path);
      return;
    }
    try {
      Files.createDirectories(nio(path), new FileAttribute[0]);
    } catch (IOException e) {
      throw LocalCheckpointFiles.unchecked(e);
    }
  }

  public boolean exists(Path path) {
    return local ? Files.exists(nio(path), new LinkOption[0]) : other.exists(path);
  }

  public void delete(Path path) {
    if (!local || Files.isDirectory(nio(path), new LinkOption[] {LinkOption.NOFOLLOW_LINKS})) {
      other.delete(path);
      return;
    }
    try {
      Files.deleteIfExists(nio(path));
      Files.deleteIfExists(checksum(nio(path)));
    } catch (IOException e) {
      throw LocalCheckpointFiles.unchecked(e);
    }
  }

  public boolean isLocal() { return other.isLocal(); }

  public Path createCheckpointDirectory() { return other.createCheckpointDirectory(); }

  public void close() { other.close(); }

  /** Where Hadoop keeps a file's checksums. */
  private static java.nio.file.Path checksum(java.nio.file.Path file) {
    return file.resolveSibling("." + file.getFileName() + ".crc");
  }

  /** Scala's trait declares no checked exceptions, but its callers catch them by type. */
  private static RuntimeException unchecked(Throwable error) {
    org.apache.spark.unsafe.Platform.throwException(error);
    return new RuntimeException(error);
  }

  private static class Draft extends CheckpointFileManager$CancellableFSDataOutputStream {
    private final FileChannel channel;
    private final OutputStream stream;
    private final java.nio.file.Path draft;
    private final java.nio.file.Path target;
    private final boolean overwrite;
    private boolean done = false;

    Draft(FileChannel channel, OutputStream stream, java.nio.file.Path draft,
        java.nio.file.Path target, boolean overwrite) throws IOException {
      super(stream);
      this.channel = channel;
      this.stream = stream;
      this.draft = draft;
      this.target = target;
      this.overwrite = overwrite;
    }

    public synchronized void close() throws IOException {
      if (done) return;
      done = true;
      try {
        stream.flush();
        channel.force(true);
        stream.close();
        byte[] sums = sums(Files.readAllBytes(draft));
        publish();
        writeSums(sums);
        FileChannel folder =
            FileChannel.open(target.getParent(), new OpenOption[] {StandardOpenOption.READ});
        try {
          folder.force(true);
        } finally {
          folder.close();
        }
      } finally {
        channel.close();
        Files.deleteIfExists(draft);
      }
    }

    /** Hadoop's format: a mark, the bytes per checksum, and a CRC-32 for each piece of that size. */
    private static byte[] sums(byte[] data) {
      java.util.zip.CRC32 crc = new java.util.zip.CRC32();
      crc.update(data, 0, data.length);
      java.nio.ByteBuffer sums = java.nio.ByteBuffer.allocate(12);
      sums.put((byte) 'c');
      sums.put((byte) 'r');
      sums.put((byte) 'c');
      sums.put((byte) 0);
      sums.putInt(Math.max(data.length, 512));
      sums.putInt((int) crc.getValue());
      return sums.array();
    }

    /** After the file itself: without its checksums it can be read, with those of another it cannot. */
    private void writeSums(byte[] sums) throws IOException {
      java.nio.file.Path fresh = draft.resolveSibling(draft.getFileName() + ".crc");
      FileChannel file = FileChannel.open(fresh,
          new OpenOption[] {StandardOpenOption.CREATE_NEW, StandardOpenOption.WRITE});
      try {
        file.write(java.nio.ByteBuffer.wrap(sums));
        file.force(true);
      } finally {
        file.close();
      }
      Files.move(fresh, checksum(target), new CopyOption[] {StandardCopyOption.ATOMIC_MOVE});
    }

    private void publish() throws IOException {
      if (overwrite) {
        Files.deleteIfExists(checksum(target));
        Files.move(draft, target, new CopyOption[] {StandardCopyOption.ATOMIC_MOVE});
        return;
      }
      try {
        Files.createLink(target, draft);
      } catch (java.nio.file.FileAlreadyExistsException e) {
        throw new org.apache.hadoop.fs.FileAlreadyExistsException("File " + target + " already exists");
      }
    }

    public synchronized void cancel() {
      if (done) return;
      done = true;
      try {
        channel.close();
        Files.deleteIfExists(draft);
      } catch (IOException e) {
        throw LocalCheckpointFiles.unchecked(e);
      }
    }
  }
}
