// Runs the calls that it reads, a JSON object a line, on a queue of LedgerQ, and prints what each
// returned, a JSON object a line. For tests/stores/ledgerq_real.py.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/vnykmshr/ledgerq/pkg/ledgerq"
)

type call struct {
	Call     string            `json:"call"`
	Dir      string            `json:"dir"`
	Messages uint64            `json:"messages"` // of a segment
	DLQ      string            `json:"dlq"`
	Priority bool              `json:"by_priority"`
	Payload  []byte            `json:"payload"`
	Level    uint8             `json:"priority"`
	Seconds  float64           `json:"seconds"`
	Headers  map[string]string `json:"headers"`
	Key      string            `json:"key"`
	Gzip     bool              `json:"gzip"`
	Count    int               `json:"count"`
	ID       uint64            `json:"id"`
	Reason   string            `json:"reason"`
}

type message struct {
	ID      uint64            `json:"id"`
	Payload []byte            `json:"payload"`
	Expires int64             `json:"expires"`
	Level   uint8             `json:"priority"`
	Headers map[string]string `json:"headers"`
}

type result struct {
	Error    string         `json:"error,omitempty"`
	New      bool           `json:"new,omitempty"`
	Messages []message      `json:"messages,omitempty"`
	Stats    *ledgerq.Stats `json:"stats,omitempty"`
}

var queue *ledgerq.Queue

func open(c call) error {
	options := ledgerq.DefaultOptions(c.Dir)
	if c.Messages > 0 {
		options.RotationPolicy = ledgerq.RotateByBoth
		options.MaxSegmentMessages = c.Messages
	}
	options.EnablePriorities = c.Priority
	options.DLQPath = c.DLQ
	options.MinFreeDiskSpace = 0
	options.DefaultDeduplicationWindow = time.Hour // 0: no keys
	var err error
	queue, err = ledgerq.Open(c.Dir, options)
	return err
}

func take(from *ledgerq.Queue, count int) (found []message, err error) {
	for i := 0; i < count; i++ {
		got, err := from.Dequeue()
		if err != nil {
			return found, err
		}
		found = append(found, message{got.ID, got.Payload, got.ExpiresAt, uint8(got.Priority), got.Headers})
	}
	return found, nil
}

func run(c call) (made result, err error) {
	ttl := time.Duration(c.Seconds * float64(time.Second))
	switch c.Call {
	case "open":
		err = open(c)
	case "close":
		err = queue.Close()
	case "sync":
		err = queue.Sync()
	case "push":
		options := ledgerq.EnqueueOptions{Priority: ledgerq.Priority(c.Level), TTL: ttl, Headers: c.Headers}
		if c.Gzip {
			options.Compression = ledgerq.CompressionGzip
		}
		_, err = queue.EnqueueWithAllOptions(c.Payload, options)
	case "push_once":
		var again bool
		_, again, err = queue.EnqueueWithDedup(c.Payload, c.Key, ttl)
		made.New = !again
	case "pop":
		made.Messages, err = take(queue, c.Count)
	case "pop_dead":
		made.Messages, err = take(queue.GetDLQ(), c.Count)
	case "nack":
		err = queue.Nack(c.ID, c.Reason)
	case "stats":
		made.Stats = queue.Stats()
	default:
		err = fmt.Errorf("no call %q", c.Call)
	}
	return made, err
}

func main() {
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 64<<20)
	out := json.NewEncoder(os.Stdout)
	for lines.Scan() {
		var c call
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			panic(err)
		}
		made, err := run(c)
		if err != nil {
			made.Error = err.Error()
		}
		if err := out.Encode(made); err != nil {
			panic(err)
		}
	}
}
