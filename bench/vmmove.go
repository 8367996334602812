package main

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/nearmetal/nearmetal/api"
)

// migrationPort is where the receiving QEMU of virsh listens.
const migrationPort = 49152

// migrations compares moving a running machine to another node with virsh's move of an identical one between the same libvirtds, in turn, to and fro.
func (v *virtual) migrations(ctx context.Context) (err error) {
	busy := load()
	// Member 0 moves. One of the others stays on each node, which would stop its libvirtd without any.
	if err := v.Create(ctx, 3); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, v.Delete(context.WithoutCancel(ctx))) }()
	cluster, err := v.client.Cluster(ctx, clusterName)
	if err != nil {
		return err
	}
	at := make([]string, 3)
	for _, m := range cluster.Status.Members {
		at[m.Rank] = m.Node
	}
	other := map[string]string{"n1": "n2", "n2": "n1"}
	if at[1] == at[2] {
		if _, err := v.move(ctx, 2, other[at[1]]); err != nil {
			return err
		}
		if err := v.reach(ctx, api.ClusterReady); err != nil {
			return err
		}
	}
	t, err := v.makeTwin(ctx, at[0], other[at[0]])
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.end(context.WithoutCancel(ctx))) }()
	still, sent := map[string][]float64{}, map[string][]float64{}
	times, err := v.inTurn(partMigrations, v.o.vmPairs, map[string]func() (float64, error){
		byHand: func() (float64, error) {
			begun := time.Now()
			if err := t.migrate(ctx); err != nil {
				return 0, err
			}
			seconds := time.Since(begun).Seconds()
			stats, err := t.virsh(ctx, "domjobinfo", twinName, "--completed")
			if err != nil {
				return 0, err
			}
			downtime, err := jobFigure(stats, "Total downtime", "ms")
			if err != nil {
				return 0, err
			}
			still[byHand] = append(still[byHand], downtime/1e3)
			return seconds, t.hear(ctx)
		},
		nearmetal: func() (float64, error) {
			begun := time.Now()
			report, err := v.move(ctx, 0, other[at[0]])
			if err != nil {
				return 0, err
			}
			seconds := time.Since(begun).Seconds()
			at[0] = other[at[0]]
			still[nearmetal], sent[nearmetal] = append(still[nearmetal], report.DowntimeSeconds), append(sent[nearmetal], report.TotalSeconds)
			return seconds, v.reach(ctx, api.ClusterReady)
		},
	})
	if err != nil {
		return err
	}
	fmt.Fprintf(v.text, "Live move of one virtual machine of %d MiB that does nothing between two nodes, %s, beside virsh migrate --live of an identical one between the same libvirtds, %d pairs, load %s to %s\n",
		vmMemory>>20, accelerator(v.hand.args), v.o.vmPairs, busy, load())
	v.compare("request until it has moved", times, 0)
	fmt.Fprintf(v.text, "    of which nearmetal's transfer between the nodes' agents: %s s\n", spread(sent[nearmetal], 2))
	v.compare("standing still (by hand: what QEMU reports)", still, 0)
	v.text.WriteString("\n")
	return nil
}

// move moves a member of the site's cluster to a node, and returns what the site reports of it.
func (v *virtual) move(ctx context.Context, rank int, to string) (api.MoveReport, error) {
	ctx, cancel := context.WithTimeout(ctx, vmLimit)
	defer cancel()
	asked, err := v.client.MigrateCluster(ctx, clusterName, api.MigrateRequest{Members: []string{fmt.Sprintf("%s-%d", clusterName, rank)}, To: to})
	if err != nil {
		return api.MoveReport{}, err
	}
	for change, err := range v.client.WatchCluster(ctx, clusterName) {
		if err != nil {
			return api.MoveReport{}, err
		}
		move := change.Cluster.Status.Move
		if move == nil || !move.Ended || asked.Status.Move == nil || move.AskedAt.Before(asked.Status.Move.AskedAt) {
			continue
		}
		m := move.Members[0]
		if m.Phase != api.MoveMoved {
			return api.MoveReport{}, fmt.Errorf("member %s did not move: %s", m.Member, m.Message)
		}
		if m.Report != nil {
			return *m.Report, nil
		}
	}
	return api.MoveReport{}, errors.New("the watch ended before the member had moved")
}

// migrate moves the twin to its other node.
func (t *twin) migrate(ctx context.Context) error {
	to := t.nodes[1-t.at]
	shown, err := inside(ctx, to.space, "ip", "-4", "-o", "address", "show", "dev", "underlay")
	if err != nil {
		return err
	}
	address, _, _ := strings.Cut(field(shown, 3), "/")
	_, err = t.virsh(ctx, "migrate", "--live", "--unsafe", twinName, to.uri(),
		"--migrateuri", fmt.Sprintf("tcp://%s:%d", address, migrationPort))
	if err == nil {
		t.at = 1 - t.at
	}
	return err
}

// jobFigure reads one figure of virsh domjobinfo, in this unit.
func jobFigure(text, name, unit string) (float64, error) {
	found := regexp.MustCompile(regexp.QuoteMeta(name) + `:\s+([0-9.]+)\s+` + unit).FindStringSubmatch(text)
	if found == nil {
		return 0, fmt.Errorf("virsh domjobinfo shows no %q in %s: %s", name, unit, text)
	}
	return strconv.ParseFloat(found[1], 64)
}
