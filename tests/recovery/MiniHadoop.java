import java.nio.file.Files;
import java.nio.file.Path;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.hdfs.MiniDFSCluster;
import org.apache.hadoop.yarn.conf.YarnConfiguration;
import org.apache.hadoop.yarn.server.MiniYARNCluster;

/**
 * `dfs FOLDER PORT`: a name node at a port and a data node, formatted at the first start. `yarn FOLDER NODES`: a
 * resource manager and node managers, which use the file system of FOLDER/core-site.xml. Each writes its `…-site.xml`
 * for clients, then waits.
 */
class MiniHadoop {
    public static void main(String[] arguments) throws Exception {
        Path folder = Path.of(arguments[1]);
        System.setProperty("test.build.data", folder.resolve("data").toString());
        int number = Integer.parseInt(arguments[2]);
        if (arguments[0].equals("dfs")) {
            Configuration files = files(folder.resolve("dfs"), number);
            write(files, folder.resolve("core-site.xml"));
        } else {
            write(nodes(folder, number), folder.resolve("yarn-site.xml"));
        }
        Thread.sleep(Long.MAX_VALUE);
    }

    private static Configuration files(Path folder, int port) throws Exception {
        Configuration conf = new Configuration();
        conf.set("hdfs.minidfs.basedir", folder.toString());
        boolean isNew = !Files.exists(folder);
        MiniDFSCluster cluster =
                new MiniDFSCluster.Builder(conf).numDataNodes(1).nameNodePort(port).format(isNew).build();
        cluster.waitClusterUp();
        conf.set("fs.defaultFS", cluster.getURI().toString());
        return conf;
    }

    private static Configuration nodes(Path folder, int nodes) throws Exception {
        YarnConfiguration conf = new YarnConfiguration();
        conf.addResource(folder.resolve("core-site.xml").toUri().toURL());
        // The capacity scheduler has no queues without a file of its own.
        conf.set("yarn.resourcemanager.scheduler.class", FIFO);
        conf.set("yarn.scheduler.minimum-allocation-mb", "256");
        conf.set("yarn.nodemanager.resource.memory-mb", "3072");
        conf.set("yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage", "100");
        conf.set("yarn.nodemanager.vmem-check-enabled", "false");
        MiniYARNCluster cluster = new MiniYARNCluster("headrace", nodes, 1, 1);
        cluster.init(conf);
        cluster.start();
        return cluster.getConfig();
    }

    private static final String FIFO =
            "org.apache.hadoop.yarn.server.resourcemanager.scheduler.fifo.FifoScheduler";

    private static void write(Configuration found, Path file) throws Exception {
        Configuration conf = new Configuration(found);
        // Its class is in the jars of the small cluster alone.
        conf.unset("net.topology.node.switch.mapping.impl");
        Path part = file.resolveSibling(file.getFileName() + ".part");
        try (var opened = Files.newOutputStream(part)) {
            conf.writeXml(opened);
        }
        Files.move(part, file);
    }
}
