package io.millrace;

import java.lang.reflect.Field;
import java.util.ArrayList;
import java.util.List;
import org.apache.spark.sql.catalyst.expressions.Alias;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.AttributeReference;
import org.apache.spark.sql.catalyst.expressions.Cast;
import org.apache.spark.sql.catalyst.expressions.EvalMode$;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.ExprId;
import org.apache.spark.sql.catalyst.expressions.GetStructField;
import org.apache.spark.sql.catalyst.expressions.If;
import org.apache.spark.sql.catalyst.expressions.Literal$;
import org.apache.spark.sql.catalyst.expressions.NamedExpression;
import org.apache.spark.sql.catalyst.expressions.PythonUDF;
import org.apache.spark.sql.catalyst.plans.logical.LocalRelation;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.catalyst.trees.TreePattern;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.Metadata;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.types.CalendarInterval;

/** Surgery on logical plans: what is below a cut becomes a hole that other rows fill. */
public class PlanCuts {
  private static final List FIXED = java.util.Arrays.asList(new Object[] {
      "Project", "Filter", "Expand", "Generate", "SubqueryAlias", "View", "LocalRelation"});

  private static class Swap extends scala.runtime.AbstractPartialFunction {
    private final LogicalPlan from;
    private final LogicalPlan to;

    Swap(LogicalPlan from, LogicalPlan to) {
      this.from = from;
      this.to = to;
    }

    public boolean isDefinedAt(Object node) { return node == from; }

    public Object applyOrElse(Object node, scala.Function1 otherwise) {
      return node == from ? to : otherwise.apply(node);
    }
  }

  public static scala.collection.immutable.Seq seq(List items) {
    return scala.jdk.javaapi.CollectionConverters.asScala(items).toSeq();
  }

  public static List list(scala.collection.Seq items) {
    return new ArrayList(scala.jdk.javaapi.CollectionConverters.asJava(items));
  }

  /** A hole with these columns. */
  public static LogicalPlan hole(List attributes) {
    return new LocalRelation(seq(attributes), seq(new ArrayList()), false, scala.Option.empty());
  }

  /** The plan with this very node replaced. */
  public static LogicalPlan replace(LogicalPlan plan, LogicalPlan node, LogicalPlan by) {
    return (LogicalPlan) plan.transformDown(new Swap(node, by));
  }

  /** Expressions over a plan, by these names. */
  public static LogicalPlan project(LogicalPlan child, List expressions, List names) {
    List columns = new ArrayList();
    for (int i = 0; i < expressions.size(); i++) {
      columns.add(alias((Expression) expressions.get(i), (String) names.get(i), null));
    }
    return new Project(seq(columns), child);
  }

  /** Rows as the columns that a hole has: by position, with the hole's ids and types. */
  public static LogicalPlan fill(LogicalPlan rows, LogicalPlan hole) {
    List given = list(rows.output());
    List wanted = list(hole.output());
    List columns = new ArrayList();
    for (int i = 0; i < wanted.size(); i++) {
      Attribute attribute = (Attribute) wanted.get(i);
      Expression value = (Expression) given.get(i);
      if (!value.dataType().catalogString().equals(attribute.dataType().catalogString())) {
        value = new Cast(value, attribute.dataType(), scala.Option.apply("UTC"),
            EvalMode$.MODULE$.LEGACY());
      }
      columns.add(alias(value, attribute.name(), attribute.exprId()));
    }
    return new Project(seq(columns), rows);
  }

  private static Alias alias(Expression value, String name, ExprId id) {
    ExprId chosen = id == null ? NamedExpression.newExprId() : id;
    return new Alias(value, name, chosen, seq(new ArrayList()), scala.Option.empty(),
        seq(new ArrayList()));
  }

  /** A value where a condition holds, and NULL elsewhere. */
  public static Expression where(Expression condition, Expression value) {
    return new If(condition, value, Literal$.MODULE$.create(null, value.dataType()));
  }

  /** A time, or the end of windows. */
  public static Expression end(Expression time) {
    if (!(time.dataType() instanceof StructType)) return time;
    return new GetStructField(time, 1, scala.Option.empty());
  }

  /** A column that no plan has yet. */
  public static Attribute attribute(String name, DataType type) {
    return new AttributeReference(name, type, true, Metadata.empty(), NamedExpression.newExprId(),
        seq(new ArrayList()));
  }

  /** Whether a plan over a hole is the same for every batch and reads nothing beside it. */
  public static boolean isFixed(LogicalPlan plan) {
    String kind = plan.getClass().getSimpleName();
    if (!FIXED.contains(kind)) return false;
    List expressions = list(plan.expressions());
    for (int i = 0; i < expressions.size(); i++) {
      Expression each = (Expression) expressions.get(i);
      if (!each.deterministic() || each.containsPattern(TreePattern.CURRENT_LIKE())
          || each.containsPattern(TreePattern.PYTHON_UDF())
          || each.containsPattern(TreePattern.PLAN_EXPRESSION())) {
        return false;
      }
    }
    List children = list(plan.children());
    for (int i = 0; i < children.size(); i++) {
      if (!isFixed((LogicalPlan) children.get(i))) return false;
    }
    return true;
  }

  public static Expression constant(String value, DataType type) {
    return new Cast(Literal$.MODULE$.apply(value), type, scala.Option.apply("UTC"),
        EvalMode$.MODULE$.LEGACY());
  }

  /** The microseconds of an interval; null with months, or with days where their length varies. */
  public static Long microseconds(Object value, boolean fixedDays) {
    // Python gives small numbers back as integers.
    if (value instanceof Number) return Long.valueOf(((Number) value).longValue());
    if (!(value instanceof CalendarInterval)) return null;
    CalendarInterval interval = (CalendarInterval) value;
    if (interval.months != 0 || (interval.days != 0 && !fixedDays)) return null;
    return interval.days * 86400000000L + interval.microseconds;
  }

  /** The pickled function of a node that runs one of the user's in Python. */
  public static byte[] command(Object function) {
    scala.collection.Seq command = ((PythonUDF) function).func().command();
    byte[] bytes = new byte[command.length()];
    for (int i = 0; i < bytes.length; i++) bytes[i] = ((Byte) command.apply(i)).byteValue();
    return bytes;
  }

  /** A private field of an object of Spark's, such as a writer's output mode. */
  public static Object field(Object target, String name) {
    Class kind = target.getClass();
    while (kind != null) {
      try {
        Field field = kind.getDeclaredField(name);
        field.setAccessible(true);
        return field.get(target);
      } catch (NoSuchFieldException missing) {
        kind = kind.getSuperclass();
      } catch (IllegalAccessException error) {
        throw new IllegalStateException(name + " of " + target.getClass(), error);
      }
    }
    throw new IllegalStateException(target.getClass() + " has no field " + name);
  }
}
