package headrace;

import java.io.File;
import java.io.FileOutputStream;
import java.io.Serializable;
import java.util.Iterator;

import org.apache.arrow.vector.ipc.ArrowFileWriter;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.execution.arrow.ArrowWriter;
import org.apache.spark.sql.types.StructType;

/** Writes rows as an Arrow file (arrow_files.py). Compiled by Janino: no generics in interfaces, no lambdas. */
abstract class ArrowFile implements Serializable {
    /** A batch ends with this many rows, or with the bytes below: a row may have a megabyte. */
    private static final int MOST_ROWS = 16384;
    private static final int MOST_BYTES = 8 << 20;

    final void write(StructType schema, Iterator rows, File file) throws Exception {
        ArrowWriter batch = ArrowWriter.create(schema, "UTC", true, false);
        try {
            FileOutputStream output = new FileOutputStream(file);
            try {
                ArrowFileWriter writer = new ArrowFileWriter(batch.root(), null, output.getChannel());
                writer.start();
                while (rows.hasNext()) {
                    fill(batch, rows);
                    writer.writeBatch();
                    batch.reset();
                }
                writer.end();
            } finally {
                output.close();
            }
        } finally {
            batch.root().close();
        }
    }

    private void fill(ArrowWriter batch, Iterator rows) {
        int bytes = 0;
        for (int count = 0; rows.hasNext() && count < MOST_ROWS && bytes < MOST_BYTES; count++) {
            bytes += add((InternalRow) rows.next(), batch);
        }
        batch.finish();
    }

    /** Adds a row to a batch; returns about how many bytes it has. */
    abstract int add(InternalRow row, ArrowWriter batch);
}
