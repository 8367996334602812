package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/agentstream"
)

// Tenants fill homes as they like, so counting one has limits. The server's patience is longer than countTime.
const (
	// maxCounted is how many files and directories are looked at.
	maxCounted = 100_000
	// maxCountDepth is how many directories below each other are entered: each holds a file descriptor open.
	maxCountDepth = 64
	countTime     = 3 * time.Second
)

// countHome answers a question of the server about a cluster's home.
func (a *Agent) countHome(ctx context.Context, stream *agentstream.ClientConn, asked agentstream.CountHome) {
	ctx, cancel := context.WithTimeout(ctx, countTime)
	defer cancel()
	usage, err := a.usageOfHome(ctx, asked.MemberID)
	// A stream that broke meanwhile has nobody at its other end that waits for this.
	_ = stream.Send(agentstream.Up{HomeCounted: &agentstream.HomeCounted{Answer: agentstream.AnswerTo(asked.ID, err), Usage: usage}})
}

// usageOfHome counts the home of the cluster that a member belongs to.
func (a *Agent) usageOfHome(ctx context.Context, memberID string) (api.HomeUsage, error) {
	found := make(chan *string, 1)
	a.post(ctx, func() {
		var dir *string
		if m := a.members[memberID]; m != nil && m.want != nil {
			dir = &m.want.HomeDir
		}
		found <- dir
	})
	select {
	case dir := <-found:
		switch {
		case dir == nil:
			return api.HomeUsage{}, errors.New("this node has no such member")
		case *dir == "": // each of its members has one of its own
			return api.HomeUsage{}, nil
		}
		return homeUsage(ctx, *dir)
	case <-ctx.Done():
		return api.HomeUsage{}, ctx.Err()
	}
}

// homeUsage counts the files below a directory and stops at the limits above, or at the end of ctx. A home that was not made yet is empty.
func homeUsage(ctx context.Context, dir string) (api.HomeUsage, error) {
	c := homeCount{ctx: ctx, left: maxCounted}
	root, err := os.OpenRoot(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return c.usage, nil
	}
	if err != nil {
		return c.usage, fmt.Errorf("shared home: %w", err)
	}
	defer root.Close()
	if err := c.count(root, maxCountDepth); err != nil {
		return c.usage, fmt.Errorf("shared home: %w", err)
	}
	return c.usage, nil
}

// homeCount is a count under way.
type homeCount struct {
	ctx   context.Context
	left  int
	usage api.HomeUsage
}

// batch is how many names of a directory are read at once: a tenant's directory may have any number.
const batch = 256

// count adds what is below a directory. It follows no links, and what vanishes meanwhile is not counted.
func (c *homeCount) count(dir *os.Root, depth int) error {
	names, err := dir.Open(".")
	if err != nil {
		return err
	}
	defer names.Close()
	for !c.usage.AtLeast {
		entries, err := names.ReadDir(batch)
		for _, e := range entries {
			if c.left == 0 || c.ctx.Err() != nil {
				c.usage.AtLeast = true
				return nil
			}
			c.left--
			if err := c.add(dir, e.Name(), depth); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// add counts one entry of a directory, and what is below it.
func (c *homeCount) add(dir *os.Root, name string, depth int) error {
	info, err := dir.Lstat(name)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		c.usage.Files++
		c.usage.Bytes += min(info.Size(), math.MaxInt64-c.usage.Bytes) // sparse files add up to more than fits
		return nil
	}
	if depth == 0 {
		c.usage.AtLeast = true
		return nil
	}
	below, err := dir.OpenRoot(name)
	if err != nil {
		return err
	}
	defer below.Close()
	return c.count(below, depth-1)
}
