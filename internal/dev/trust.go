package dev

import (
	"context"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/nearmetal/nearmetal/api/client"
	"github.com/nearmetal/nearmetal/internal/config"
)

// trustPause is how long it is until a node is looked for again that has not joined yet.
const trustPause = 100 * time.Millisecond

// trust makes a node of this site a trusted builder once it has joined, as its administrator: it is this machine. It returns when that is done,
// or ctx is.
func trust(ctx context.Context, stateDir, node string, log *slog.Logger) {
	c, err := client.New(client.Options{Addr: "unix:" + filepath.Join(stateDir, config.SocketName)})
	if err != nil {
		log.WarnContext(ctx, "the node is no trusted builder", "node", node, "error", err)
		return
	}
	defer c.Close()
	for warned := false; ; {
		n, err := c.Node(ctx, node)
		if err == nil && n.Agent != nil {
			if n.Control == nil || n.Control.Builder == nil {
				_, err = c.TrustNode(ctx, node)
			}
			if err == nil {
				return
			}
		}
		if err != nil && ctx.Err() == nil && !client.HasCode(err, "node_not_found") && !warned {
			warned = true
			log.WarnContext(ctx, "the node is no trusted builder yet", "node", node, "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(trustPause):
		}
	}
}
