package io.millrace;

import org.apache.spark.TaskContext;
import org.apache.spark.sql.catalyst.expressions.Alias;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.AttributeReference;
import org.apache.spark.sql.catalyst.expressions.BoundReference;
import org.apache.spark.sql.catalyst.expressions.CreateStruct$;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.GetStructField;
import org.apache.spark.sql.catalyst.expressions.NamedExpression$;
import org.apache.spark.sql.catalyst.plans.logical.DeserializeToObject;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.MapPartitions;
import org.apache.spark.sql.catalyst.plans.logical.SerializeFromObject;
import org.apache.spark.sql.classic.Dataset;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.types.Metadata;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;

/**
 * A shard of a real-time query, as Spark sees it: a function from a partition's rows to the rows of
 * its answers, while more rows are still to come. Spark's own Python runner cannot do that: it waits
 * for the next row before it looks for output. What passes between a task and the process of its
 * shard is in ShardSession.
 */
public class ShardBridge extends scala.runtime.AbstractFunction1 implements java.io.Serializable {
  /** The local property that has the epoch's times. */
  public static final String MOMENT = "millrace.realtime.moment";

  private final ShardSession.Shards shards;

  public ShardBridge(ShardSession.Shards shards) { this.shards = shards; }

  public Object apply(Object rows) {
    TaskContext context = TaskContext.get();
    String moment = context.getLocalProperty(MOMENT);
    if (moment == null) {
      throw new IllegalStateException("a shard of operator " + shards.operator + " was run without its "
          + "epoch. This is a bug in Millrace; nothing was committed.");
    }
    return new ShardSession(shards, context, moment, (scala.collection.Iterator) rows);
  }

  /**
   * A frame with the answers of the shards: rows go in and out in Spark's own form, as if they were
   * objects of the user's.
   */
  public static Dataset over(SparkSession session, LogicalPlan child, ShardBridge bridge) {
    Expression whole = CreateStruct$.MODULE$.apply((scala.collection.immutable.Seq) child.output());
    Attribute given = attribute("rows", bridge.shards.input);
    Attribute answered = attribute("answers", bridge.shards.output);
    LogicalPlan in = new DeserializeToObject(whole, given, child);
    LogicalPlan mapped = new MapPartitions(bridge, answered, in);
    StructField[] fields = bridge.shards.output.fields();
    java.util.ArrayList columns = new java.util.ArrayList();
    for (int i = 0; i < fields.length; i++) {
      Expression answer = new BoundReference(0, bridge.shards.output, false);
      Expression field = new GetStructField(answer, i, scala.Option.apply(fields[i].name()));
      columns.add(new Alias(field, fields[i].name(), NamedExpression$.MODULE$.newExprId(),
          nothing(), scala.Option.empty(), nothing()));
    }
    scala.collection.immutable.Seq listed =
        scala.jdk.javaapi.CollectionConverters.asScala(columns).toList();
    return Dataset.ofRows(session, new SerializeFromObject(listed, mapped));
  }

  private static Attribute attribute(String name, StructType type) {
    return new AttributeReference(name, type, false, Metadata.empty(),
        NamedExpression$.MODULE$.newExprId(), nothing());
  }

  private static scala.collection.immutable.Seq nothing() {
    return (scala.collection.immutable.Seq) (Object) scala.collection.immutable.Nil$.MODULE$;
  }
}
