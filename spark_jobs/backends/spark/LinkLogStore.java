package headrace;

import io.delta.storage.HadoopFileSystemLogStore;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.OpenOption;
import java.nio.file.Paths;
import java.nio.file.StandardCopyOption;
import java.nio.file.StandardOpenOption;
import java.util.Iterator;
import java.util.UUID;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;

/** Commits on a local disk: a link creates a version whole, or fails where another process has it. */
public class LinkLogStore extends HadoopFileSystemLogStore {
  public LinkLogStore(Configuration conf) {
    super(conf);
  }

  public void write(Path path, Iterator actions, Boolean overwrite, Configuration conf) throws IOException {
    StringBuilder all = new StringBuilder();
    while (actions.hasNext()) {
      all.append((String) actions.next()).append('\n');
    }
    java.nio.file.Path to = Paths.get(path.toUri().getPath(), new String[0]);
    // The name is that of an unfinished commit: an owner that takes the table over removes it.
    java.nio.file.Path tmp = to.resolveSibling("_commit_" + UUID.randomUUID() + ".json.tmp");
    try {
      FileChannel file = FileChannel.open(tmp, new OpenOption[] {StandardOpenOption.CREATE_NEW, StandardOpenOption.WRITE});
      try {
        ByteBuffer bytes = ByteBuffer.wrap(all.toString().getBytes(StandardCharsets.UTF_8));
        while (bytes.hasRemaining()) {
          file.write(bytes);
        }
        file.force(true);
      } finally {
        file.close();
      }
      if (overwrite.booleanValue()) {
        Files.move(tmp, to, new java.nio.file.CopyOption[] {StandardCopyOption.ATOMIC_MOVE});
      } else {
        Files.createLink(to, tmp);
      }
    } finally {
      Files.deleteIfExists(tmp);
    }
    FileChannel folder = FileChannel.open(to.getParent(), new OpenOption[] {StandardOpenOption.READ});
    try {
      folder.force(true);
    } finally {
      folder.close();
    }
  }

  public Boolean isPartialWriteVisible(Path path, Configuration conf) {
    return Boolean.FALSE;
  }
}
