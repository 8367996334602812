package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/api/client"
)

// refresh is how often the queue is asked again while a cluster waits in it: those before it leave without a change of its own.
const refresh = 2 * time.Second

// await is what a command waits for.
type await struct {
	// what the cluster is then, for people: "ready".
	what string
	// done tells whether it is so; an error ends the wait, too.
	done func(api.Cluster) (bool, error)
	// timeout bounds the wait; 0: for ever.
	timeout time.Duration
	// created tells that the cluster was made by this command: a refusal then gives its name back.
	created bool
	// line is what it waits for, for people, beside the state of the cluster; nil: nothing.
	line func(api.Cluster) string
}

// untilReady waits for a cluster whose members have all come up.
func untilReady(timeout time.Duration, created bool) await {
	ready := func(cl api.Cluster) (bool, error) { return cl.Status.Phase == api.ClusterReady, nil }
	return await{what: "ready", done: ready, timeout: timeout, created: created}
}

// untilSettled waits until a cluster has just the members that were asked for, all of them ready.
func untilSettled(asked api.Cluster, timeout time.Duration) await {
	seen := false
	done := func(cl api.Cluster) (bool, error) {
		// The first that a watch tells may be older than the answer to what was asked.
		seen = seen || sameSizes(cl, asked)
		return seen && cl.Status.Phase == api.ClusterReady && complete(cl), nil
	}
	return await{what: "as it was asked for", done: done, timeout: timeout}
}

func sameSizes(a, b api.Cluster) bool {
	return slices.EqualFunc(a.Spec.Groups, b.Spec.Groups, func(x, y api.Group) bool {
		return x.Name == y.Name && x.Size == y.Size && x.Spares == y.Spares
	})
}

// complete tells whether the members are those the groups ask for, and nothing is left of others.
func complete(cl api.Cluster) bool {
	ready := map[string]int{}
	for _, m := range cl.Status.Members {
		switch m.Phase {
		case api.MemberReady:
			ready[m.Group]++
		case api.MemberSpare:
		default:
			return false
		}
	}
	for _, g := range cl.Spec.Groups {
		if ready[g.Name] != g.Size {
			return false
		}
		delete(ready, g.Name)
	}
	return len(ready) == 0
}

// watched is one word of a watch.
type watched struct {
	change client.ClusterChange
	err    error
}

// await waits until the cluster is as wanted, or it is certain that it won't be. It tells on the error stream how far it is.
func (a *app) await(ctx context.Context, c *client.Client, cl api.Cluster, w await) (api.Cluster, error) {
	bounded, cancel := context.WithCancel(ctx)
	if w.timeout > 0 {
		bounded, cancel = context.WithTimeout(ctx, w.timeout)
	}
	defer cancel()
	p := a.progress()
	defer p.stop()
	p.say(stateLine(cl))
	changes := make(chan watched)
	go func() {
		defer close(changes)
		for change, err := range c.WatchCluster(bounded, ref(cl)) {
			select {
			case changes <- watched{change, err}:
			case <-bounded.Done():
				return
			}
		}
	}()
	again := time.NewTicker(refresh)
	defer again.Stop()
	for {
		select {
		case <-bounded.Done():
			return cl, waitEnded(ctx, cl, w)
		case <-again.C:
		case now, more := <-changes:
			switch {
			case !more || bounded.Err() != nil:
				return cl, waitEnded(ctx, cl, w)
			case now.err != nil:
				return cl, now.err
			case now.change.Synced:
				continue
			case now.change.Deleted || now.change.Cluster.UID != cl.UID || now.change.Cluster.Status.Phase == api.ClusterDeleting:
				return cl, &exitError{ExitConflict, fmt.Errorf("cluster %q was deleted before it was %s", ref(cl), w.what)}
			}
			cl = now.change.Cluster
			if over, err := a.judge(bounded, c, cl, w); over || err != nil {
				return cl, err
			}
		}
		p.say(w.beside(a.waitLine(bounded, c, cl), cl))
	}
}

// waitEnded is the error of a wait that ended before its time: by a timeout or by the user.
func waitEnded(ctx context.Context, cl api.Cluster, w await) error {
	if ctx.Err() != nil {
		return fmt.Errorf("interrupted; cluster %q goes on without you, see 'nearmetal cluster show %s'", ref(cl), ref(cl))
	}
	state := w.beside(strings.TrimPrefix(stateLine(cl), "cluster "+cl.Name+": "), cl)
	return fmt.Errorf("cluster %q is not %s after %s: %s; it goes on, see 'nearmetal cluster show %s'", ref(cl), w.what, w.timeout, state, ref(cl))
}

// beside adds to the state of a cluster what is waited for.
func (w await) beside(state string, cl api.Cluster) string {
	if w.line == nil || w.line(cl) == "" {
		return state
	}
	return state + "; " + w.line(cl)
}

// judge tells whether the wait is over.
func (a *app) judge(ctx context.Context, c *client.Client, cl api.Cluster, w await) (bool, error) {
	if over, err := w.done(cl); over || err != nil {
		return over, err
	}
	switch cl.Status.Phase {
	case api.ClusterRefused:
		message := cl.Status.Message
		if !strings.HasPrefix(message, "cluster ") {
			message = fmt.Sprintf("cluster %q can't be placed: %s", cl.Name, message)
		}
		if w.created {
			// It holds nothing but its name, which who asked for it wants back to ask again.
			_, err := c.DeleteCluster(ctx, ref(cl))
			if err == nil {
				err = a.awaitGone(ctx, c, cl)
			}
			if err != nil {
				message += fmt.Sprintf("\nBefore you create it again: nearmetal cluster delete %s (%v)", ref(cl), err)
			}
		}
		return true, &exitError{ExitRefused, errors.New(message)}
	case api.ClusterFailed:
		return true, fmt.Errorf("cluster %q failed: %s; see 'nearmetal cluster events %s', and remove it with "+
			"'nearmetal cluster delete %s'", ref(cl), cl.Status.Message, ref(cl), ref(cl))
	default:
		return false, nil
	}
}

// waitLine is the state of a cluster and, when it waits for room, what for.
func (a *app) waitLine(ctx context.Context, c *client.Client, cl api.Cluster) string {
	line := stateLine(cl)
	if !waitsForRoom(cl) {
		return line
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	ex, err := c.Explain(ctx, ref(cl))
	if err != nil || len(ex.Waiting) == 0 {
		return line // the wait itself tells when the server is gone
	}
	return line + ": " + a.waitingText(ex.Waiting[0])
}

// waitsForRoom tells whether something of the cluster has no place yet.
func waitsForRoom(cl api.Cluster) bool {
	return cl.Status.Phase == api.ClusterQueued || slices.ContainsFunc(cl.Status.Members, func(m api.MemberStatus) bool {
		return m.Phase == api.MemberWaiting || m.Phase == api.MemberLost
	})
}

// waitingText says why a request waits, in a line whose words don't change while nothing does.
func (a *app) waitingText(w api.Waiting) string {
	text := w.Reason
	if w.Position > 0 {
		text = fmt.Sprintf("number %d in the queue: %s", w.Position, w.Reason)
	}
	if w.Earliest != nil {
		text += "; starts by " + a.clock(*w.Earliest) + " at the latest"
	}
	return text
}

// clock is a moment to the minute, with its day when that is not today.
func (a *app) clock(t time.Time) string {
	now := a.Now()
	t = t.In(now.Location()).Add(time.Minute - 1).Truncate(time.Minute)
	if t.YearDay() == now.YearDay() && t.Year() == now.Year() {
		return t.Format("15:04")
	}
	return t.Format("2006-01-02 15:04")
}

// ref is the name by which every command finds the cluster: one of another project than the default has that before it.
func ref(cl api.Cluster) string { return fullName(cl.Project, cl.Name) }

func fullName(project, name string) string {
	if project == "" || project == api.DefaultProject || strings.Contains(name, ".") {
		return name
	}
	return project + "." + name
}

// answersRequest reports whether a cluster's status is as new as the answer to a request: askedAt is the time of the request that the status
// shows, wanted the time in the answer; zero: the answer had none. A later request of the same kind is an error.
func answersRequest(cl api.Cluster, what string, askedAt, wanted time.Time) (bool, error) {
	if !wanted.IsZero() && askedAt.After(wanted) {
		return false, &exitError{ExitConflict, fmt.Errorf("another %s of cluster %q was requested meanwhile", what, ref(cl))}
	}
	return !askedAt.Before(wanted), nil
}
