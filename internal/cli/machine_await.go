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

// gone is what a machine is that was removed.
const gone = "gone"

// nodeDone tells whether what is waited for has come of a node; an error ends the wait for it.
type nodeDone func(api.Node) (bool, error)

// awaitNodes waits until all of the nodes are as they should be, or gone for good, and tells each that is. what is what they are then.
func (a *app) awaitNodes(ctx context.Context, c *client.Client, names []string, timeout time.Duration, what string, done nodeDone,
	tell func(api.Node),
) error {
	if len(names) == 0 {
		return nil
	}
	bounded, cancel := context.WithCancel(ctx)
	if timeout > 0 {
		cancel()
		bounded, cancel = context.WithTimeout(ctx, timeout)
	}
	defer cancel()
	p := a.progress()
	defer p.stop()
	w := nodeWait{app: a, c: c, left: slices.Clone(names), what: what, done: done, said: map[string]string{}}
	w.tell = func(n api.Node) {
		p.clear()
		tell(n)
	}
	of := client.Selection{Kind: api.KindNode}
	if len(names) == 1 {
		of.Name = names[0]
	}
	news := watchNews(bounded, c, of)
	for {
		looks, err := w.look(bounded)
		if err == nil && len(w.left) > 0 {
			w.report(p, looks)
			err = news.wait(bounded, nil)
		}
		switch {
		case err != nil && bounded.Err() != nil:
			return w.ended(ctx, timeout)
		case err != nil:
			return withoutYou(err, "what was asked for goes on without you, see 'nearmetal node list'")
		case len(w.left) == 0 && len(w.failed) > 0:
			return joined(w.failed)
		case len(w.left) == 0:
			return nil
		}
	}
}

// nodeWait is a wait for several nodes.
type nodeWait struct {
	app    *app
	c      *client.Client
	left   []string
	failed []error
	what   string
	done   nodeDone
	tell   func(api.Node)
	// said is the last line about each node.
	said map[string]string
}

// look asks for the nodes once, and returns those that are still waited for.
func (w *nodeWait) look(ctx context.Context) ([]api.Node, error) {
	var left []string
	var looks []api.Node
	ask, err := w.asker(ctx)
	if err != nil {
		return nil, err
	}
	for _, name := range w.left {
		n, err := ask(name)
		switch {
		case client.HasCode(err, "node_not_found") && w.what == gone:
			w.tell(api.Node{Name: name})
			continue
		case client.HasCode(err, "node_not_found"):
			w.failed = append(w.failed, err)
			continue
		case err != nil:
			return nil, err
		}
		over, err := w.done(n)
		switch {
		case err != nil:
			w.failed = append(w.failed, err)
		case over:
			if n, err = w.node(ctx, name); err != nil { // a list tells less
				return nil, err
			}
			w.tell(n)
		default:
			left = append(left, name)
			looks = append(looks, n)
		}
	}
	w.left = left
	return looks, nil
}

const (
	// askedFor is how many nodes are asked for one by one, toldOf how many are told of so.
	askedFor = 3
	toldOf   = 8
)

// report tells what the nodes do that are waited for: of few a line each when that changes, of many, and in the one line of a terminal, how many do
// what.
func (w *nodeWait) report(p *progress, nodes []api.Node) {
	if len(nodes) == 1 || len(nodes) <= toldOf && !p.terminal {
		for _, n := range nodes {
			if line := machineLine(n); line != w.said[n.Name] {
				w.said[n.Name] = line
				p.say("node " + n.Name + ": " + line)
			}
		}
		return
	}
	count := map[string]int{}
	for _, n := range nodes {
		count[stageText(n)]++
	}
	var parts []string
	for stage, n := range count {
		parts = append(parts, fmt.Sprintf("%d %s", n, stage))
	}
	slices.Sort(parts)
	p.say(fmt.Sprintf("%d nodes: %s", len(nodes), strings.Join(parts, ", ")))
}

// node asks for one node; a server that restarts meanwhile ends no wait.
func (w *nodeWait) node(ctx context.Context, name string) (api.Node, error) {
	return client.Persist(ctx, func(ctx context.Context) (api.Node, error) { return w.c.Node(ctx, name) })
}

// asker is how nodes are asked for: many by one list.
func (w *nodeWait) asker(ctx context.Context) (func(name string) (api.Node, error), error) {
	if len(w.left) <= askedFor {
		return func(name string) (api.Node, error) { return w.node(ctx, name) }, nil
	}
	all, err := client.Persist(ctx, w.c.Nodes)
	if err != nil {
		return nil, err
	}
	byName := make(map[string]api.Node, len(all))
	for _, n := range all {
		byName[n.Name] = n
	}
	return func(name string) (api.Node, error) {
		if n, ok := byName[name]; ok {
			return n, nil
		}
		return w.node(ctx, name) // gone, in the server's words
	}, nil
}

// ended is the error of a wait that ended before its time: by a timeout or by the user.
func (w *nodeWait) ended(ctx context.Context, timeout time.Duration) error {
	list := strings.Join(w.left, ", ")
	if ctx.Err() != nil {
		return fmt.Errorf("%w; what was asked for goes on, see 'nearmetal node list'", errInterrupted)
	}
	failed := append(w.failed, fmt.Errorf("not %s after %s: %s; it goes on, see 'nearmetal node show %s'", w.what, timeout, list, w.left[0]))
	return joined(failed)
}

// machineLine is what a machine does, in a line whose words don't change while nothing does.
func machineLine(n api.Node) string {
	if n.Message == "" {
		return stageText(n)
	}
	return stageText(n) + ": " + n.Message
}

// stageText is the node's phase and, while it boots, what of the boot is going on.
func stageText(n api.Node) string {
	text := string(n.Phase)
	if n.Machine == nil {
		return text
	}
	rec := &n.Machine.Record
	if rec.Phase == api.MachineBooting && rec.Boot != nil {
		text += " " + rec.Boot.Environment
	}
	if stage := stageOf(rec); stage != "" {
		text += ", " + stage
	}
	return text
}

// stageOf is what goes on of a boot, "" where none does.
func stageOf(rec *api.MachineRecord) string {
	stages := api.BootStages()
	if rec.Phase != api.MachineBooting && rec.Phase != api.MachineInspecting && rec.Phase != api.MachineCleaning || rec.Boot == nil || len(rec.Boot.Stages) >= len(stages) {
		return ""
	}
	return fmt.Sprintf("stage %s (%d of %d)", underway(rec.Boot), len(rec.Boot.Stages)+1, len(stages))
}

// underway is the stage that goes on: the one after the last that has ended.
func underway(boot *api.Boot) api.BootStage {
	stages := api.BootStages()
	if len(boot.Stages) == 0 {
		return stages[0]
	}
	i := slices.Index(stages, boot.Stages[len(boot.Stages)-1].Stage)
	return stages[min(i+1, len(stages)-1)]
}

// failedMachine is the error of a machine that has failed.
func failedMachine(n api.Node) error {
	return fmt.Errorf("node %q failed: %s; see 'nearmetal node show %s'", n.Name, orElse(n.Machine.Record.Message, "no reason is known"), n.Name)
}

// inspected tells that a machine was looked at after the time it was before, and that this is over.
func inspected(before *time.Time) nodeDone {
	return func(n api.Node) (bool, error) {
		switch {
		case n.Machine == nil:
			return false, errors.New("node " + n.Name + " is no machine of ours any more")
		case n.Machine.Record.Phase == api.MachineFailed:
			return false, failedMachine(n)
		}
		at := n.Machine.Record.InspectedAt
		return at != nil && (before == nil || at.After(*before)) && n.Machine.Record.Phase != api.MachineInspecting, nil
	}
}

// powered tells that a machine has come to what the request of a number asked for.
func powered(numbers map[string]int64, action api.PowerAction) nodeDone {
	return func(n api.Node) (bool, error) {
		if n.Machine == nil {
			return false, errors.New("node " + n.Name + " is no machine of ours any more")
		}
		rec := &n.Machine.Record
		if r := n.Machine.Request; r.Number > numbers[n.Name] {
			return false, &exitError{ExitConflict, fmt.Errorf("node %q: %s asked for power %s meanwhile; what was waited for here may never come", n.Name, r.By, r.Action)}
		}
		switch {
		case rec.DoneRequest < numbers[n.Name]:
			return false, nil
		case rec.Phase == api.MachineFailed:
			return false, failedMachine(n)
		case action == api.PowerActionOff:
			return rec.Phase == api.MachineOff, nil
		default:
			return rec.Phase == api.MachineReady && n.Phase == api.NodeReady, nil
		}
	}
}
