package demo

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/api/client"
)

const (
	// grown is the size a cluster is scaled up to: one node has no room for it, so the last member is on the other.
	grown = members + 1

	healWindow  = 60 * time.Second
	drainWindow = 30 * time.Second
)

// grow gives the cluster a member more, on the other node, and runs a job over all of them.
func (v *visit) grow(ctx context.Context) error {
	v.part("Its life: it grows, loses a member, gives a node back")
	if err := v.scale(ctx, grown); err != nil {
		return err
	}
	v.show(describe(v.cluster))
	if last := v.last(); last.Node != v.cluster.Status.Members[0].Node {
		v.show(fmt.Sprintf("%s is on another node: between nodes, messages cross a VXLAN tunnel that only this cluster has", last.Name))
	}
	return v.step(fmt.Sprintf("running an MPI hello over all %d", grown), func() error {
		program, err := v.install(v.programs.Hello)
		if err != nil {
			return err
		}
		return v.run(ctx, api.JobRequest{Command: []string{program}, Ranks: grown}, v.narrator)
	})
}

// scale gives the cluster another size and waits until it has it.
func (v *visit) scale(ctx context.Context, size int) error {
	return v.step(fmt.Sprintf("scaling the cluster from %d to %d members", len(v.cluster.Status.Members), size), func() error {
		if _, err := v.api.ScaleCluster(ctx, clusterName, api.ScaleRequest{Size: size}); err != nil {
			return err
		}
		return v.clusterReady(ctx, size)
	})
}

// last is the member of the highest rank: the last to come, the first to go.
func (v *visit) last() api.MemberStatus {
	var last api.MemberStatus
	for _, m := range v.cluster.Status.Members {
		if m.Rank >= last.Rank {
			last = m
		}
	}
	return last
}

// drain takes the last member's node out of use, as for maintenance, until the cluster has given it back.
func (v *visit) drain(ctx context.Context) (err error) {
	node := v.last().Node
	n, err := v.api.DrainNode(ctx, node, "maintenance, for the demo")
	if err != nil {
		return err
	}
	// Whatever happens: the state may be kept, and the next demo needs the node.
	defer func() {
		_, undrainErr := v.api.UndrainNode(context.WithoutCancel(ctx), node)
		if err = errors.Join(err, undrainErr); err == nil {
			v.say("undrained node %s: it accepts members again", node)
		}
	}()
	if len(n.Members) == 0 {
		return fmt.Errorf("node %s was drained with member %s on it, and the API says that it has none", node, v.last().Name)
	}
	v.say("drained node %s: it gets no new members, nothing is moved by force; it waits for %s", node, strings.Join(n.Members, ", "))
	_, err = v.api.ScaleCluster(ctx, clusterName, api.ScaleRequest{Size: grown + 1})
	if !client.HasCode(err, "no_room") {
		return fmt.Errorf("scaling to %d members, which only the drained node has room for, was not refused for lack of room but: %w", grown+1, orAccepted(err))
	}
	why, _, _ := strings.Cut(err.Error(), ";")
	v.say("asked for %d members meanwhile, and refused: %s", grown+1, why)
	if err := v.scale(ctx, members); err != nil {
		return err
	}
	err = until(ctx, drainWindow, func() (bool, error) {
		n, err = v.api.Node(ctx, node)
		return len(n.Members) == 0, err
	}, func() string { return fmt.Sprintf("node %s still has %s", node, strings.Join(n.Members, ", ")) })
	if err != nil {
		return err
	}
	v.say("node %s is empty, and could be switched off", node)
	return nil
}

func orAccepted(err error) error {
	if err == nil {
		return errors.New("accepted")
	}
	return err
}

// usage shows what the cluster has used, and that the site's sum is its capacity.
func (v *visit) usage(ctx context.Context) error {
	report, err := v.api.Usage(ctx, client.UsageQuery{From: v.siteBegan, By: "cluster"})
	if err != nil {
		return err
	}
	v.say("usage since the site was started:")
	var b strings.Builder
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	found := false
	fmt.Fprintln(t, "CLUSTER\tMEMBER-SECONDS\tCORE-SECONDS\tGIB-SECONDS\t")
	for _, r := range report.Rows {
		fmt.Fprintf(t, "%s\t%.1f\t%.1f\t%.1f\t\n", r.Cluster, r.MemberSeconds, r.CoreSeconds, r.MemoryByteSeconds/(1<<30))
		found = found || (r.UID == v.cluster.UID && r.CoreSeconds > 0)
	}
	_ = t.Flush()
	for _, s := range report.Site {
		sum := s.Allocated.CoreSeconds + s.Cleaning.CoreSeconds + s.Idle.CoreSeconds + s.Down.CoreSeconds
		fmt.Fprintf(&b, "core-seconds of the site: capacity %.1f = allocated %.1f + cleaning %.1f + idle %.1f + down %.1f\n", s.Capacity.CoreSeconds,
			s.Allocated.CoreSeconds, s.Cleaning.CoreSeconds, s.Idle.CoreSeconds, s.Down.CoreSeconds)
		if off := sum - s.Capacity.CoreSeconds; off > 1e-3 || off < -1e-3 {
			err = fmt.Errorf("the site's usage does not add up: the sum is %+g core-seconds off its capacity", off)
		}
	}
	v.show(b.String())
	if err == nil && !found {
		err = errors.New("the usage report has no core-seconds of cluster " + strconv.Quote(clusterName))
	}
	return err
}
