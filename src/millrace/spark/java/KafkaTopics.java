package io.millrace;

import java.util.Collections;
import java.util.HashMap;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.common.errors.TopicExistsException;
import org.apache.kafka.common.errors.UnknownTopicOrPartitionException;

/** What the driver asks a Kafka cluster before a query starts. */
public class KafkaTopics {
  /** The number of a topic's partitions; 0 if there is no such topic. */
  public static int partitions(Map settings, String topic) throws Exception {
    Admin admin = Admin.create(new HashMap(settings));
    try {
      Map found = (Map) admin.describeTopics(Collections.singletonList(topic))
          .allTopicNames().get();
      return ((TopicDescription) found.get(topic)).partitions().size();
    } catch (ExecutionException error) {
      if (error.getCause() instanceof UnknownTopicOrPartitionException) return 0;
      throw error;
    } finally {
      admin.close(java.time.Duration.ZERO);
    }
  }

  /** Returns if the cluster answers. */
  public static void reach(Map settings) throws Exception {
    Admin admin = Admin.create(new HashMap(settings));
    try {
      admin.listTopics().names().get();
    } finally {
      admin.close(java.time.Duration.ZERO);
    }
  }

  /** Creates a topic that keeps the last record of every key for ever, if it is not there. */
  public static void createCompacted(Map settings, String topic, int partitions) throws Exception {
    Admin admin = Admin.create(new HashMap(settings));
    try {
      NewTopic wanted =
          new NewTopic(topic, Optional.of(Integer.valueOf(partitions)), Optional.empty());
      wanted.configs(Collections.singletonMap("cleanup.policy", "compact"));
      admin.createTopics(Collections.singletonList(wanted)).all().get();
    } catch (ExecutionException error) {
      if (!(error.getCause() instanceof TopicExistsException)) throw error;
    } finally {
      admin.close(java.time.Duration.ZERO);
    }
  }
}
