package io.millrace;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.AttributeReference;
import org.apache.spark.sql.catalyst.expressions.BoundReference;
import org.apache.spark.sql.catalyst.expressions.CreateStruct$;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.Literal$;
import org.apache.spark.sql.catalyst.expressions.RuntimeReplaceable;
import org.apache.spark.sql.catalyst.expressions.aggregate.AggregateExpression;
import org.apache.spark.sql.catalyst.expressions.aggregate.DeclarativeAggregate;
import org.apache.spark.sql.catalyst.expressions.aggregate.TypedImperativeAggregate;
import org.apache.spark.sql.catalyst.expressions.objects.Invoke;
import org.apache.spark.sql.catalyst.plans.logical.Aggregate;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.classic.Dataset;
import org.apache.spark.sql.classic.SparkSession;

/**
 * An aggregate of each row by itself, as a projection. A real-time batch has no end at which groups
 * could be put together, so every row travels with the partial results that it has alone, and the
 * shard puts them together. They are computed by Spark's own functions, so they cannot differ from
 * those of a group with one row.
 */
public class RowPartials {
  /** The rows of an analysed aggregate's child, each with the results of its own group of one. */
  public static Dataset of(SparkSession session, LogicalPlan analysed) {
    Aggregate aggregate = (Aggregate) analysed;
    ArrayList columns = new ArrayList();
    Iterator each = list(aggregate.aggregateExpressions()).iterator();
    while (each.hasNext()) {
      columns.add(((Expression) each.next()).transformUp(new Alone()));
    }
    return Dataset.ofRows(session, new Project(seq(columns), aggregate.child()));
  }

  private static List list(scala.collection.Seq given) {
    return scala.jdk.javaapi.CollectionConverters.asJava(given);
  }

  private static scala.collection.immutable.Seq seq(List given) {
    return scala.jdk.javaapi.CollectionConverters.asScala(given).toList();
  }

  private static class Alone extends scala.runtime.AbstractPartialFunction {
    public boolean isDefinedAt(Object node) { return node instanceof AggregateExpression; }

    public Object applyOrElse(Object node, scala.Function1 otherwise) {
      if (!isDefinedAt(node)) return otherwise.apply(node);
      AggregateExpression aggregate = (AggregateExpression) node;
      if (aggregate.filter().isDefined()) {
        throw new IllegalStateException("no row alone: a filter in " + aggregate.sql());
      }
      return alone(aggregate.aggregateFunction());
    }
  }

  private static Expression alone(Expression function) {
    if (function instanceof DeclarativeAggregate) return declared((DeclarativeAggregate) function);
    if (function instanceof TypedImperativeAggregate) {
      return called((TypedImperativeAggregate) function);
    }
    if (function instanceof RuntimeReplaceable) {
      return alone(((RuntimeReplaceable) function).replacement());
    }
    throw new IllegalStateException("no row alone: " + function.prettyName());
  }

  /** The result after an update of the initial values. */
  private static Expression declared(DeclarativeAggregate function) {
    List buffer = list(function.aggBufferAttributes());
    Map updated = new HashMap();
    Swap initial = new Swap(values(buffer, list(function.initialValues())));
    List updates = list(function.updateExpressions());
    for (int i = 0; i < buffer.size(); i++) {
      Object update = ((Expression) updates.get(i)).transformUp(initial);
      updated.put(((AttributeReference) buffer.get(i)).exprId(), update);
    }
    return (Expression) function.evaluateExpression().transformUp(new Swap(updated));
  }

  private static Map values(List attributes, List values) {
    Map found = new HashMap();
    for (int i = 0; i < attributes.size(); i++) {
      found.put(((AttributeReference) attributes.get(i)).exprId(), values.get(i));
    }
    return found;
  }

  private static class Swap extends scala.runtime.AbstractPartialFunction {
    private final Map values;

    Swap(Map values) { this.values = values; }

    public boolean isDefinedAt(Object node) {
      return node instanceof AttributeReference
          && values.containsKey(((AttributeReference) node).exprId());
    }

    public Object applyOrElse(Object node, scala.Function1 otherwise) {
      if (!isDefinedAt(node)) return otherwise.apply(node);
      return values.get(((AttributeReference) node).exprId());
    }
  }

  /** A call of a function that has no expressions, only methods. */
  private static Expression called(TypedImperativeAggregate function) {
    List children = list(function.children());
    ArrayList bound = new ArrayList();
    ArrayList arguments = new ArrayList();
    for (int i = 0; i < children.size(); i++) {
      Expression child = (Expression) children.get(i);
      if (child.foldable()) {
        // Such a function looks at its constants when it is made.
        bound.add(child);
      } else {
        bound.add(new BoundReference(arguments.size(), child.dataType(), child.nullable()));
        arguments.add(child);
      }
    }
    Object call = new Call((TypedImperativeAggregate) function.withNewChildren(seq(bound)));
    ArrayList whole = new ArrayList();
    whole.add(CreateStruct$.MODULE$.apply(seq(arguments)));
    return new Invoke(Literal$.MODULE$.fromObject(call), "of", function.dataType(), seq(whole),
        seq(new ArrayList()), false, true, true);
  }

  /** The result of a group of one row. */
  public static class Call implements java.io.Serializable {
    private final TypedImperativeAggregate function;

    Call(TypedImperativeAggregate function) { this.function = function; }

    public Object of(InternalRow row) {
      return function.eval(function.update(function.createAggregationBuffer(), row));
    }
  }
}
