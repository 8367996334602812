package demo

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/config"
)

// withSite runs an embedded site around do.
func (v *visit) withSite(ctx context.Context, l layout, do func(context.Context) error) error {
	listen, err := freePort(ctx)
	if err != nil {
		return err
	}
	opts := config.Dev{
		Streams: v.opts.Streams, Log: v.opts.Log, StateDir: v.stateDir, Listen: listen, Nodes: l.nodes, NodeCores: l.cores,
	}
	siteCtx, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	ready, ended := make(chan Client, 1), make(chan error, 1)
	nodes := "1 node"
	if l.nodes > 1 {
		nodes = fmt.Sprintf("%d nodes", l.nodes)
	}
	v.siteBegan = time.Now()
	v.part("A site of " + nodes + " on this machine, and a cluster on it")
	err = v.step(fmt.Sprintf("starting a server, and the agents of %s with %d cores each", nodes, l.cores), func() error {
		go func() { ended <- v.opts.Serve(siteCtx, opts, func(c Client) { ready <- c }) }()
		select {
		case v.api = <-ready:
			return v.nodesReady(ctx, l.nodes)
		case err := <-ended:
			ended <- err
			return fmt.Errorf("the embedded server did not start: %w", err)
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	if err == nil {
		if slots := l.nodes * l.cores; slots > v.opts.cpus {
			v.show(fmt.Sprintf("OVERSUBSCRIBED: %d core slots on %d CPUs, so members share cores. These figures say nothing about separate cores.", slots, v.opts.cpus))
		}
		err = do(ctx)
	}
	return errors.Join(err, v.step("stopping server and agents", func() error {
		stop()
		return <-ended
	}))
}

// nodesReady waits for nodes that members can be placed on.
func (v *visit) nodesReady(ctx context.Context, want int) error {
	last := "no node has registered"
	return until(ctx, startWindow, func() (bool, error) {
		nodes, err := v.api.Nodes(ctx)
		if err != nil {
			return false, fmt.Errorf("the nodes can't be listed: %w", err)
		}
		usable := 0
		for _, node := range nodes {
			if node.Phase != api.NodeReady {
				last = fmt.Sprintf("node %s is %s: %s", node.Name, node.Phase, node.Message)
				continue
			}
			for _, s := range node.Offer.Stacks {
				if s.Stack == api.StackContainer && !s.OK {
					return false, fmt.Errorf("this machine can't carry containers:\n%s", strings.Join(s.Problems, "\n"))
				}
				if s.Stack == api.StackContainer {
					usable++
				}
			}
		}
		return usable >= want, nil
	}, func() string {
		return fmt.Sprintf("not all of %d nodes are ready: %s; the agents' logs are below %s", want, last, v.stateDir)
	})
}

// until asks again and again until it is so, and says what is not when the time is over.
func until(ctx context.Context, window time.Duration, so func() (bool, error), what func() string) error {
	ctx, cancel := context.WithTimeout(ctx, window)
	defer cancel()
	for {
		ok, err := so()
		if ok || (err != nil && ctx.Err() == nil) {
			return err
		}
		timer := time.NewTimer(20 * time.Millisecond)
		select {
		case <-ctx.Done():
			timer.Stop()
			return fmt.Errorf("after %s %s: %w", window, what(), ctx.Err())
		case <-timer.C:
		}
	}
}

// freePort finds a port on loopback that nobody listens on.
func freePort(ctx context.Context) (string, error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("the embedded server found no free port: %w", err)
	}
	return l.Addr().String(), l.Close()
}
