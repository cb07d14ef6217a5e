package headrace;

import java.util.HashMap;

import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;
import org.apache.parquet.hadoop.ParquetFileReader;
import org.apache.parquet.hadoop.ParquetFileWriter;
import org.apache.parquet.hadoop.ParquetWriter;
import org.apache.parquet.hadoop.util.HadoopInputFile;
import org.apache.parquet.hadoop.util.HadoopOutputFile;
import org.apache.parquet.schema.MessageType;

/** Writes one Parquet file of several with the same columns, without decoding a row (row_group_copy.py). */
public final class RowGroupCopy {
    public void concatenate(Configuration configuration, String[] files, String target) throws Exception {
        ParquetFileReader first = ParquetFileReader.open(input(configuration, files[0]));
        MessageType schema;
        try {
            schema = first.getFileMetaData().getSchema();
        } finally {
            first.close();
        }
        ParquetFileWriter writer = new ParquetFileWriter(HadoopOutputFile.fromPath(new Path(target), configuration),
            schema, ParquetFileWriter.Mode.CREATE, ParquetWriter.DEFAULT_BLOCK_SIZE,
            ParquetWriter.MAX_PADDING_SIZE_DEFAULT);
        try {
            writer.start();
            for (int number = 0; number < files.length; number++) {
                writer.appendFile(input(configuration, files[number]));
            }
            writer.end(new HashMap());
        } finally {
            writer.close();
        }
    }

    private static HadoopInputFile input(Configuration configuration, String file) throws Exception {
        return HadoopInputFile.fromPath(new Path(file), configuration);
    }
}
