package headrace;

import java.io.File;
import java.io.FileOutputStream;
import java.io.Serializable;
import java.util.Iterator;

import org.apache.arrow.vector.ipc.ArrowFileWriter;
import org.apache.spark.TaskContext;
import org.apache.spark.api.java.function.VoidFunction;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.execution.QueryExecution;
import org.apache.spark.sql.execution.SQLExecution;
import org.apache.spark.sql.execution.arrow.ArrowWriter;
import org.apache.spark.sql.types.StructType;

import scala.Option;
import scala.runtime.AbstractFunction0;

/**
 * Executes a query whose tasks write their rows as Arrow files (arrow_files.py). A file without rows is not written.
 * Compiled by Janino: no generics in interfaces, no lambdas.
 */
public final class ArrowFiles {
    /** Executes the physical plan that the query has, as an action of Spark SQL: listeners and observations see it. */
    public void write(QueryExecution query, String folder) {
        query.executedPlan().resetMetrics();
        SQLExecution.withNewExecutionId(query, Option.apply("arrow files"), new WritingOfQuery(query, folder));
    }
}

final class WritingOfQuery extends AbstractFunction0 {
    private final QueryExecution query;
    private final String folder;

    WritingOfQuery(QueryExecution query, String folder) {
        this.query = query;
        this.folder = folder;
    }

    public Object apply() {
        // Of several queries for one folder, some may know that a column is never null.
        StructType schema = query.executedPlan().schema().asNullable();
        query.executedPlan().execute().toJavaRDD().foreachPartition(new WritingOfTask(schema, folder));
        return null;
    }
}

final class WritingOfTask implements VoidFunction, Serializable {
    /** A batch ends with this many rows, or with the bytes below: a row may have a megabyte. */
    private static final int MOST_ROWS = 16384;
    private static final int MOST_BYTES = 8 << 20;
    private static final int BYTES_OF_OTHERS = 4096;

    private final StructType schema;
    private final String folder;

    WritingOfTask(StructType schema, String folder) {
        this.schema = schema;
        this.folder = folder;
    }

    public void call(Object partition) throws Exception {
        Iterator rows = (Iterator) partition;
        if (!rows.hasNext()) {
            return;
        }
        ArrowWriter batch = ArrowWriter.create(schema, "UTC", true, false);
        try {
            write(batch, rows, String.format("%05d.arrow", new Object[] {TaskContext.getPartitionId()}));
        } finally {
            batch.root().close();
        }
    }

    private void write(ArrowWriter batch, Iterator rows, String name) throws Exception {
        FileOutputStream output = new FileOutputStream(new File(folder, name));
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
    }

    private static void fill(ArrowWriter batch, Iterator rows) {
        int count = 0;
        int bytes = 0;
        while (rows.hasNext() && count < MOST_ROWS && bytes < MOST_BYTES) {
            InternalRow row = (InternalRow) rows.next();
            batch.write(row);
            count++;
            // What a plan returns as a rule. To ask the batch for its size takes longer than to write the row.
            bytes += row instanceof UnsafeRow ? ((UnsafeRow) row).getSizeInBytes() : BYTES_OF_OTHERS;
        }
        batch.finish();
    }
}
