package headrace;

import java.io.File;
import java.io.FileInputStream;
import java.io.FileOutputStream;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;

import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.ipc.ArrowFileReader;
import org.apache.arrow.vector.ipc.ArrowFileWriter;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.UnsafeProjection;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.execution.LogicalRDD;
import org.apache.spark.sql.execution.QueryExecution;
import org.apache.spark.sql.execution.arrow.ArrowWriter;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.ArrowUtils;
import org.apache.spark.sql.vectorized.ArrowColumnVector;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/**
 * Projections over rows in an Arrow file, in the calling thread: without a job, whose closures hold whole expressions
 * (row_projection.py). The code of the projections is generated once. Compiled by Janino: no generics, no lambdas.
 */
public final class RowProjection {
    private SparkSession session;
    private StructType schema;
    private UnsafeProjection[] steps;

    /** Prepares the projections of a query; returns whether it consists of nothing else, over an RDD of rows. */
    public boolean prepare(QueryExecution query) {
        session = query.sparkSession();
        schema = query.analyzed().schema().asNullable();
        SparkSession.setActiveSession(session);
        List projects = new ArrayList();
        LogicalPlan plan = query.optimizedPlan();
        while (plan instanceof Project && plan.deterministic() && plan.subqueries().isEmpty()) {
            projects.add(0, plan);
            plan = ((Project) plan).child();
        }
        if (!(plan instanceof LogicalRDD)) {
            return false;
        }
        steps = new UnsafeProjection[projects.size()];
        for (int step = 0; step < steps.length; step++) {
            Project project = (Project) projects.get(step);
            steps[step] = UnsafeProjection.create(project.projectList(), project.child().output());
            steps[step].initialize(0);
        }
        return true;
    }

    /** Reads rows with the columns of the RDD from a file, and writes their projections into another one. */
    public void write(String source, String target) throws Exception {
        SparkSession.setActiveSession(session);
        BufferAllocator allocator = ArrowUtils.rootAllocator().newChildAllocator("row projection", 0, Long.MAX_VALUE);
        try {
            FileInputStream input = new FileInputStream(new File(source));
            try {
                ArrowFileReader reader = new ArrowFileReader(input.getChannel(), allocator);
                try {
                    write(reader, target);
                } finally {
                    reader.close();
                }
            } finally {
                input.close();
            }
        } finally {
            allocator.close();
        }
    }

    private void write(ArrowFileReader reader, String target) throws Exception {
        FileOutputStream output = new FileOutputStream(new File(target));
        try {
            ArrowWriter projected = ArrowWriter.create(schema, "UTC", true, false);
            try {
                ArrowFileWriter writer = new ArrowFileWriter(projected.root(), null, output.getChannel());
                writer.start();
                while (reader.loadNextBatch()) {
                    project(reader.getVectorSchemaRoot(), projected);
                    writer.writeBatch();
                    projected.reset();
                }
                writer.end();
            } finally {
                projected.root().close();
            }
        } finally {
            output.close();
        }
    }

    private void project(VectorSchemaRoot batch, ArrowWriter projected) {
        ColumnVector[] columns = new ColumnVector[batch.getFieldVectors().size()];
        for (int number = 0; number < columns.length; number++) {
            columns[number] = new ArrowColumnVector(batch.getVector(number));
        }
        Iterator rows = new ColumnarBatch(columns, batch.getRowCount()).rowIterator();
        while (rows.hasNext()) {
            InternalRow row = (InternalRow) rows.next();
            for (int step = 0; step < steps.length; step++) {
                row = (InternalRow) steps[step].apply(row);
            }
            projected.write(row);
        }
        projected.finish();
    }
}
