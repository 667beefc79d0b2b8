// Sends messages by a producer, gets them by a push consumer of its own, and ends both as the client does.

package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

func main() {
	server, topic := os.Args[1], os.Args[2]
	count, err := strconv.Atoi(os.Args[3])
	must(err)
	servers := primitive.NamesrvAddr{server}

	p, err := rocketmq.NewProducer(producer.WithNameServer(servers), producer.WithGroupName("GoProducer"))
	must(err)
	must(p.Start())
	for i := 0; i < count; i++ {
		result, err := p.SendSync(context.Background(), primitive.NewMessage(topic, []byte(strconv.Itoa(i))))
		must(err)
		if result.Status != primitive.SendOK {
			must(fmt.Errorf("status %d", result.Status))
		}
	}

	var lock sync.Mutex
	found := map[string]bool{}
	all := make(chan struct{})
	c, err := rocketmq.NewPushConsumer(
		consumer.WithNameServer(servers), consumer.WithGroupName("GoConsumer"),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
	)
	must(err)
	must(c.Subscribe(topic, consumer.MessageSelector{}, func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		lock.Lock()
		defer lock.Unlock()
		for _, message := range messages {
			if found[string(message.Body)] = true; len(found) == count {
				close(all)
				count = -1
			}
		}
		return consumer.ConsumeSuccess, nil
	}))
	must(c.Start())
	select {
	case <-all:
	case <-time.After(60 * time.Second):
		must(fmt.Errorf("%d messages came", len(found)))
	}
	must(c.Shutdown())
	must(p.Shutdown())
	fmt.Println("done")
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
