package headrace;

import io.delta.storage.HadoopFileSystemLogStore;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.*;
import java.util.Iterator;
import org.apache.hadoop.conf.Configuration;

/** Commits on a local disk: a link creates a version whole, or fails where another process has it. */
public class LinkLogStore extends HadoopFileSystemLogStore {
  public LinkLogStore(Configuration conf) { super(conf); }

  public void write(org.apache.hadoop.fs.Path path, Iterator actions, Boolean overwrite, Configuration conf)
      throws IOException {
    StringBuilder all = new StringBuilder();
    while (actions.hasNext()) all.append((String) actions.next()).append('\n');
    ByteBuffer bytes = ByteBuffer.wrap(all.toString().getBytes(StandardCharsets.UTF_8));
    Path to = Paths.get(path.toUri().getPath(), new String[0]);
    // Named as an unfinished commit: an owner that takes the table over removes it.
    Path tmp = to.resolveSibling("_commit_" + java.util.UUID.randomUUID() + ".json.tmp");
    try {
      OpenOption[] create = {StandardOpenOption.CREATE_NEW, StandardOpenOption.WRITE};
      FileChannel file = FileChannel.open(tmp, create);
      try {
        while (bytes.hasRemaining()) file.write(bytes);
        file.force(true);
      } finally { file.close(); }
      if (overwrite.booleanValue()) Files.move(tmp, to, new CopyOption[] {StandardCopyOption.ATOMIC_MOVE});
      else Files.createLink(to, tmp);
    } finally { Files.deleteIfExists(tmp); }
    FileChannel folder = FileChannel.open(to.getParent(), new OpenOption[] {StandardOpenOption.READ});
    try { folder.force(true); } finally { folder.close(); }
  }

  public Boolean isPartialWriteVisible(org.apache.hadoop.fs.Path path, Configuration conf) { return Boolean.FALSE; }
}
