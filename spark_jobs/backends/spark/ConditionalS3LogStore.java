package headrace;

import io.delta.storage.S3SingleDriverLogStore;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.Iterator;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.*;

/** Commits in an object store: a conditional PUT creates a version, or fails where another process has it. */
public class ConditionalS3LogStore extends S3SingleDriverLogStore {
  public ConditionalS3LogStore(Configuration conf) { super(conf); }

  public void write(Path path, Iterator actions, Boolean overwrite, Configuration conf) throws IOException {
    if (overwrite.booleanValue()) { super.write(path, actions, overwrite, conf); return; }
    StringBuilder all = new StringBuilder();
    while (actions.hasNext()) all.append((String) actions.next()).append('\n');
    byte[] body = all.toString().getBytes(StandardCharsets.UTF_8);
    try {
      FSDataOutputStreamBuilder create = path.getFileSystem(conf).createFile(path);
      create.overwrite(false);
      // A file system that cannot, or must not, create conditionally refuses here.
      create.must("fs.option.create.conditional.overwrite", true);
      FSDataOutputStream out = (FSDataOutputStream) create.build();
      try { out.write(body); } finally { out.close(); }
    } catch (IOException e) {
      if (!isTaken(e)) throw e;
      // The answer may be to our own retry, whose first attempt arrived: then the bytes there are ours.
      FSDataInputStream there = path.getFileSystem(conf).open(path);
      try {
        if (!java.util.Arrays.equals(body, there.readAllBytes()))
          throw new java.nio.file.FileAlreadyExistsException(path.toString());
      } finally { there.close(); }
    }
  }

  private static boolean isTaken(Throwable e) {
    for (Throwable t = e; t != null; t = t.getCause()) {
      String text = String.valueOf(t.getMessage());
      if (t instanceof FileAlreadyExistsException) return true;
      if (text.contains("Status Code: 412") || text.contains("Status Code: 409")) return true;
    }
    return false;
  }
}
