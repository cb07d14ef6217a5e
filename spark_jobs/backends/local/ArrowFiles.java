package headrace;

import java.io.File;
import java.util.Iterator;

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

final class WritingOfTask extends ArrowFile implements VoidFunction {
    private static final int BYTES_OF_OTHERS = 4096;
    private final StructType schema;
    private final String folder;

    WritingOfTask(StructType schema, String folder) {
        this.schema = schema;
        this.folder = folder;
    }

    public void call(Object partition) throws Exception {
        Iterator rows = (Iterator) partition;
        if (rows.hasNext()) {
            String name = String.format("%05d.arrow", new Object[] {TaskContext.getPartitionId()});
            write(schema, rows, new File(folder, name));
        }
    }

    int add(InternalRow row, ArrowWriter batch) {
        batch.write(row);
        // What a plan returns as a rule. To ask the batch for its size takes longer than to write the row.
        return row instanceof UnsafeRow ? ((UnsafeRow) row).getSizeInBytes() : BYTES_OF_OTHERS;
    }
}
