package io.millrace;

import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.spark.sql.ForeachWriter;
import org.apache.spark.sql.catalyst.encoders.ExpressionEncoder;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.util.CaseInsensitiveMap;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.connector.catalog.SupportsWrite;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.catalog.TableProvider;
import org.apache.spark.sql.connector.write.BatchWrite;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.SupportsTruncate;
import org.apache.spark.sql.connector.write.Write;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.execution.datasources.DataSource$;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Utils$;
import org.apache.spark.sql.execution.datasources.v2.DistributionAndOrderingUtils$;
import org.apache.spark.sql.execution.datasources.v2.FileDataSourceV2;
import org.apache.spark.sql.execution.datasources.v2.WriteToDataSourceV2;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.execution.streaming.sources.ForeachWriterTable$;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.internal.connector.SupportsStreamingUpdateAsAppend;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** What Spark's writer of streams does with tables, for epochs. */
public class StreamSinks {
  private static class Info implements LogicalWriteInfo {
    private final String query;
    private final StructType schema;
    private final CaseInsensitiveStringMap options;

    Info(String query, StructType schema, Map options) {
      this.query = query;
      this.schema = schema;
      this.options = new CaseInsensitiveStringMap(options);
    }

    public String queryId() { return query; }

    public StructType schema() { return schema; }

    public CaseInsensitiveStringMap options() { return options; }
  }

  public static LogicalWriteInfo info(String query, DataType schema, Map options) {
    return new Info(query, (StructType) schema, options);
  }

  /** What writes to a table in an output mode, or Spark's refusal. */
  public static Write write(SupportsWrite table, LogicalWriteInfo info, String mode) {
    WriteBuilder builder = table.newWriteBuilder(info);
    if ("Complete".equals(mode)) {
      if (!(builder instanceof SupportsTruncate)) throw refused(table, mode);
      builder = ((SupportsTruncate) builder).truncate();
    } else if ("Update".equals(mode) && !(builder instanceof SupportsStreamingUpdateAsAppend)) {
      throw refused(table, mode);
    }
    return builder.build();
  }

  private static RuntimeException refused(Table table, String mode) {
    return new IllegalArgumentException(table.name() + " does not support " + mode + " mode.");
  }

  /** The plan that writes rows; collecting it runs it. */
  public static LogicalPlan writing(Write write, BatchWrite batch, LogicalPlan rows) {
    LogicalPlan prepared =
        DistributionAndOrderingUtils$.MODULE$.prepareQuery(write, rows, scala.Option.empty());
    return new WriteToDataSourceV2(scala.Option.empty(), batch, prepared,
        seq(new ArrayList()));
  }

  /** The table that a format writes streams to; null if it has a sink of the old kind. */
  public static Table table(SparkSession session, String source, Map options, DataType schema)
      throws Exception {
    SQLConf conf = session.sessionState().conf();
    Class kind = DataSource$.MODULE$.lookupDataSource(source, conf);
    if (!TableProvider.class.isAssignableFrom(kind) || FileDataSourceV2.class.isAssignableFrom(kind)
        || conf.disabledV2StreamingWriters().contains(kind.getCanonicalName())) {
      return null;
    }
    TableProvider provider = (TableProvider) kind.getConstructor(new Class[0]).newInstance(new Object[0]);
    if (provider instanceof PythonDataSourceV2) ((PythonDataSourceV2) provider).setShortName(source);
    Map all = new HashMap(scala.jdk.javaapi.CollectionConverters.asJava(
        DataSourceV2Utils$.MODULE$.extractSessionConfigs(provider, conf)));
    all.putAll(options);
    Table table = DataSourceV2Utils$.MODULE$.getTableFromProvider(provider,
        new CaseInsensitiveStringMap(all),
        provider.supportsExternalMetadata() ? scala.Option.apply((StructType) schema)
            : scala.Option.empty());
    return takesStreams(table) ? table : null;
  }

  public static boolean takesStreams(Table table) {
    return table instanceof SupportsWrite
        && table.capabilities().contains(TableCapability.STREAMING_WRITE);
  }

  /** The sink of the old kind that a writer of Spark's makes. */
  public static Object oldSink(Object writer, CaseInsensitiveMap options, String path)
      throws Throwable {
    Object given = path == null ? options : options.updated("path", path);
    Method create = writer.getClass().getDeclaredMethod(
        "createV1Sink", new Class[] {CaseInsensitiveMap.class});
    create.setAccessible(true);
    try {
      return create.invoke(writer, new Object[] {given});
    } catch (InvocationTargetException error) {
      throw error.getCause();
    }
  }

  /** The options of a writer, as they were written. */
  public static Map options(CaseInsensitiveMap options) {
    return new HashMap(scala.jdk.javaapi.CollectionConverters.asJava(options.originalMap()));
  }

  /** A table whose rows a function of the program's takes. */
  public static Table foreach(Object writer, Object encoder) {
    return ForeachWriterTable$.MODULE$.apply((ForeachWriter) writer, (ExpressionEncoder) encoder);
  }

  private static scala.collection.immutable.Seq seq(List items) {
    return scala.jdk.javaapi.CollectionConverters.asScala(items).toSeq();
  }
}
