package client

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"strings"
	"time"

	"github.com/nearmetal/nearmetal/api"
)

// ClusterChange is one item of a watch of clusters: a cluster's new state, or its end.
type ClusterChange struct {
	// Cluster is the whole cluster in its new state, or in its last state if Deleted is set.
	Cluster api.Cluster
	Deleted bool
	// Synced marks, without a cluster, that everything which existed when the watch began, or came back, has been told.
	Synced bool
}

// WatchCluster yields a cluster as it is and every change of it, until it is deleted (the last one), the loop is left or ctx
// ends. It comes back by itself when the connection breaks. An error is the last thing yielded. A cluster that is gone when
// the watch comes back is told as deleted too.
func (c *Client) WatchCluster(ctx context.Context, name string) iter.Seq2[ClusterChange, error] {
	return c.watchClusters(ctx, cluster(name)+"/watch", true)
}

// WatchClusters yields all clusters as they are, Synced, and then every change, until the loop is left or ctx ends. It comes
// back by itself when the connection breaks; when it was away for too long it tells everything anew, and those that are
// gone as deleted.
func (c *Client) WatchClusters(ctx context.Context) iter.Seq2[ClusterChange, error] {
	return c.watchClusters(ctx, "/v1/watch", false)
}

func (c *Client) watchClusters(ctx context.Context, path string, single bool) iter.Seq2[ClusterChange, error] {
	return func(yield func(ClusterChange, error) bool) {
		w := clusterWatch{known: map[string]api.Cluster{}, yield: yield, single: single}
		err := c.stream(ctx, path, "", func(e sseEvent) (bool, error) { return w.take(e) }, func() { w.fresh = map[string]bool{} })
		if single && HasCode(err, "cluster_not_found") && len(w.known) > 0 {
			// It went while we were away.
			for _, last := range w.known {
				yield(ClusterChange{Cluster: last, Deleted: true}, nil)
			}
			return
		}
		if err != nil {
			yield(ClusterChange{}, err)
		}
	}
}

// clusterWatch remembers what was told, to tell after a new beginning what is gone.
type clusterWatch struct {
	known map[string]api.Cluster // by UID
	// fresh are the UIDs told since a new beginning, nil when nothing has to be compared.
	fresh  map[string]bool
	yield  func(ClusterChange, error) bool
	single bool
}

// take tells one event; false ends the watch.
func (w *clusterWatch) take(e sseEvent) (bool, error) {
	switch e.name {
	case "sync":
		for uid, last := range w.known {
			if w.fresh != nil && !w.fresh[uid] {
				delete(w.known, uid)
				if !w.yield(ClusterChange{Cluster: last, Deleted: true}, nil) || w.single {
					return false, nil
				}
			}
		}
		w.fresh = nil
		return w.yield(ClusterChange{Synced: true}, nil), nil
	case "cluster", "deleted":
		var cl api.Cluster
		if err := json.Unmarshal(e.data, &cl); err != nil {
			return false, fmt.Errorf("the watch sent what is no cluster: %w", err)
		}
		deleted := e.name == "deleted"
		if deleted {
			delete(w.known, cl.UID)
		} else {
			w.known[cl.UID] = cl
		}
		if w.fresh != nil {
			w.fresh[cl.UID] = true
		}
		more := w.yield(ClusterChange{Cluster: cl, Deleted: deleted}, nil)
		return more && !(deleted && w.single), nil
	default:
		return true, nil // a newer server may tell more
	}
}

// FollowEvents yields the events of a cluster after sequence number after, and new ones as they come, until the cluster is
// gone, the loop is left or ctx ends. It comes back by itself when the connection breaks.
func (c *Client) FollowEvents(ctx context.Context, name string, after int64) iter.Seq2[api.Event, error] {
	return func(yield func(api.Event, error) bool) {
		path := cluster(name) + "/events?watch=true"
		last := ""
		if after > 0 {
			last = fmt.Sprint(after)
		}
		err := c.stream(ctx, path, last, func(e sseEvent) (bool, error) {
			var ev api.Event
			if e.name != "event" {
				return true, nil
			}
			if err := json.Unmarshal(e.data, &ev); err != nil {
				return false, fmt.Errorf("the stream sent what is no event: %w", err)
			}
			return yield(ev, nil), nil
		}, func() {})
		if err != nil && !errors.Is(err, errStreamEnded) {
			yield(api.Event{}, err)
		}
	}
}

// errStreamEnded: the server ended the stream of its own accord.
var errStreamEnded = errors.New("the stream ended")

// stream reads server-sent events, resuming after the last one when the connection breaks. restart is called before a stream
// that begins anew because the history was gone. It returns when take has enough (nil), ctx ends, or there is no going on.
func (c *Client) stream(ctx context.Context, path, last string, take func(sseEvent) (bool, error), restart func()) error {
	return c.persistentStream(ctx, path, last, false, take, restart)
}

// persistentStream is stream; answered says that the server is known, so that it is waited for from the beginning.
func (c *Client) persistentStream(ctx context.Context, path, last string, answered bool, take func(sseEvent) (bool, error), restart func()) error {
	retry := newBackoff()
	events := strings.Contains(path, "/events")
	for {
		header := http.Header{"Accept": {"text/event-stream"}}
		if last != "" {
			header.Set("Last-Event-ID", last)
		}
		resp, err := c.send(ctx, http.MethodGet, path, header, nil)
		switch {
		case err == nil:
			answered = true
			var more bool
			more, err = readEvents(resp.Body, &last, retry, take)
			resp.Body.Close()
			if !more {
				return err
			}
			if events && err == nil && ctx.Err() == nil {
				return errStreamEnded
			}
		case HasCode(err, "history_gone") && last != "":
			last = ""
			restart()
			continue
		case !transient(err, answered):
			return contextError(ctx, err)
		}
		if !retry.wait(ctx) {
			return contextError(ctx, err)
		}
	}
}

// sseEvent is one server-sent event.
type sseEvent struct {
	id, name string
	data     []byte
}

// maxEvent bounds one event: a cluster of four thousand members is about a megabyte.
const maxEvent = 16 << 20

// readEvents hands events on until the stream breaks; false when take has enough or failed. A nil error with true is an
// orderly end.
func readEvents(r io.Reader, last *string, retry *backoff, take func(sseEvent) (bool, error)) (bool, error) {
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, 0, 64<<10), maxEvent)
	var e sseEvent
	for lines.Scan() {
		line := lines.Bytes()
		if len(line) == 0 {
			if e.name != "" {
				if e.id != "" {
					*last = e.id
				}
				retry.reset()
				if more, err := take(e); !more || err != nil {
					return false, err
				}
			}
			e = sseEvent{}
			continue
		}
		field, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimPrefix(value, []byte(" "))
		switch string(field) {
		case "id":
			e.id = string(value)
		case "event":
			e.name = string(value)
		case "data":
			e.data = append(e.data, value...)
		}
	}
	return true, lines.Err()
}

// transient tells whether trying again can help. A server that has never answered is not waited for: its address or the token may
// be wrong.
func transient(err error, answered bool) bool {
	var unreachable *UnreachableError
	return errors.As(err, &unreachable) && answered || HasCode(err, "unavailable")
}

// Persist asks again while the server is away, for as long as its restart may take. ask must be good to be repeated: whether the server heard
// it before it went away is not known.
func Persist[T any](ctx context.Context, ask func(context.Context) (T, error)) (T, error) {
	for retry := newBackoff(); ; {
		v, err := ask(ctx)
		if err == nil || !transient(err, true) {
			return v, err
		}
		if !retry.wait(ctx) {
			return v, contextError(ctx, err)
		}
	}
}

// backoff waits longer from one failure to the next, and gives up after a while without success.
type backoff struct {
	pause   time.Duration
	failing time.Time
}

const (
	firstPause = 50 * time.Millisecond
	longPause  = 2 * time.Second
	// giveUp is how long a server may be away before a stream ends with an error: longer than a restart takes.
	giveUp = 30 * time.Second
)

func newBackoff() *backoff { return &backoff{pause: firstPause} }

func (b *backoff) reset() { b.pause, b.failing = firstPause, time.Time{} }

// wait waits; false when ctx ends or it is time to give up.
func (b *backoff) wait(ctx context.Context) bool {
	if b.failing.IsZero() {
		b.failing = time.Now()
	} else if time.Since(b.failing) > giveUp {
		return false
	}
	timer := time.NewTimer(b.pause)
	defer timer.Stop()
	b.pause = min(2*b.pause, longPause)
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// contextError prefers the reason why the caller gave up.
func contextError(ctx context.Context, err error) error {
	if cause := ctx.Err(); cause != nil {
		return cause
	}
	if err == nil {
		return errStreamEnded
	}
	return err
}
