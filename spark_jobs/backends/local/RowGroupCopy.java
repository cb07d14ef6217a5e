package headrace;

import java.util.HashMap;

import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;
import org.apache.parquet.HadoopReadOptions;
import org.apache.parquet.ParquetReadOptions;
import org.apache.parquet.hadoop.ParquetFileReader;
import org.apache.parquet.hadoop.ParquetFileWriter;
import org.apache.parquet.hadoop.ParquetWriter;
import org.apache.parquet.hadoop.util.HadoopInputFile;
import org.apache.parquet.hadoop.util.HadoopOutputFile;
import org.apache.parquet.schema.MessageType;

/** Writes one Parquet file of several with the same columns, without decoding a row (row_group_copy.py). */
public final class RowGroupCopy {
    public void concatenate(Configuration configuration, String[] files, String target) throws Exception {
        // Parquet's own appendFile makes new options for each file, and parses Hadoop's XML files for them.
        ParquetReadOptions options = HadoopReadOptions.builder(configuration).build();
        ParquetFileWriter writer = null;
        try {
            for (int number = 0; number < files.length; number++) {
                ParquetFileReader reader = ParquetFileReader.open(input(configuration, files[number]), options);
                try {
                    if (writer == null) {
                        writer = begun(configuration, target, reader.getFileMetaData().getSchema());
                    }
                    reader.appendTo(writer);
                } finally {
                    reader.close();
                }
            }
            writer.end(new HashMap());
        } finally {
            if (writer != null) {
                writer.close();
            }
        }
    }

    private static ParquetFileWriter begun(Configuration configuration, String target, MessageType schema)
            throws Exception {
        ParquetFileWriter writer = new ParquetFileWriter(HadoopOutputFile.fromPath(new Path(target), configuration),
            schema, ParquetFileWriter.Mode.CREATE, ParquetWriter.DEFAULT_BLOCK_SIZE,
            ParquetWriter.MAX_PADDING_SIZE_DEFAULT);
        writer.start();
        return writer;
    }

    private static HadoopInputFile input(Configuration configuration, String file) throws Exception {
        return HadoopInputFile.fromPath(new Path(file), configuration);
    }
}
