package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/adler32"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/data/xrootd"
	"github.com/nearmetal/nearmetal/internal/netns"
)

const (
	// cacheRounds is how often each side is measured. Each round reads another file, first cold, then warm.
	cacheRounds = 10
	// cacheGoal is how much longer a member may take through its node's cache than a reader on the node through a cache by hand.
	cacheGoal = 1.05
	// cacheFileBytes is the size of a file, and cacheBlockBytes that of a cache's block on both sides: the default of nodes.
	cacheFileBytes, cacheBlockBytes = 64 << 20, 256 << 10
	// tinyFile is as good as empty: what it takes to read it is the start of the reader and the way to the cache.
	tinyFile, tinyBytes = "tiny.root", 4 << 10
	cacheByHand         = "XCache by hand"
	cacheByMember       = "member's cache"
)

// cacheRead prints how many nanoseconds a read of a URL takes.
const cacheRead = `begun=$(date +%%s%%N); xrdcp -N -s %s - >/dev/null; echo read $(($(date +%%s%%N) - begun))`

// caches compares reads through the cache of a member's node with reads on the node through an XCache by hand, which has the same configuration and the same way
// to the same origin.
func caches(ctx context.Context, o options, work string, log *slog.Logger, text *bytes.Buffer) (err error) {
	dir := filepath.Join(work, "caches")
	dev, err := startSite(ctx, o.nearmetal, filepath.Join(dir, "state"), 1, 1, 1<<30)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.stop()) }()
	c := &cacheRun{site: dev, log: log, work: dir}
	if c.dir, err = os.MkdirTemp("/tmp", "nearmetal-bench-xrd"); err != nil { // the servers' own user must reach it
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(c.dir)) }()
	stop, err := c.prepare(ctx)
	defer func() { err = errors.Join(err, stop()) }()
	if err != nil {
		return err
	}
	if err := dev.reach(ctx, api.ClusterReady); err != nil {
		return err
	}
	if c.cpus, err = c.printedBy(ctx, clusterName, shell("sed -n 's/^Cpus_allowed_list:[[:space:]]*//p' /proc/self/status")); err != nil {
		return err
	}
	c.cpus = strings.TrimSpace(c.cpus)
	busy := load()
	took := map[string]map[string][]float64{cacheByHand: {}, cacheByMember: {}}
	for round := range cacheRounds + 1 { // the first is to get warm
		order := []string{cacheByHand, cacheByMember}
		if round%2 == 1 {
			slices.Reverse(order)
		}
		for _, temperature := range []string{"cold", "warm", "tiny"} {
			name := cacheFile(round)
			if temperature == "tiny" {
				name = tinyFile
			}
			for _, side := range order {
				seconds, err := c.read(ctx, side, name)
				if err != nil {
					return fmt.Errorf("%s: %w", side, err)
				}
				log.Info("caches", "round", round, "of", side, "temperature", temperature, "seconds", seconds, "load", load())
				if round > 0 {
					took[side][temperature] = append(took[side][temperature], seconds)
				}
			}
		}
	}
	fmt.Fprintf(text, "Caches: a file of %d MiB read by xrdcp through an XCache that has not read it (cold), and again (warm), and one of %d KiB (tiny, warm); %d rounds in turn, load %s to %s: seconds, median (lowest to highest)\n",
		cacheFileBytes>>20, tinyBytes>>10, cacheRounds, busy, load())
	for _, side := range []string{cacheByHand, cacheByMember} {
		fmt.Fprintf(text, "  %-20s cold %s, warm %s, tiny %s\n", side, spread(took[side]["cold"], 3), spread(took[side]["warm"], 3), spread(took[side]["tiny"], 3))
	}
	fmt.Fprintf(text, "  member's / by hand, goal at most %.2f: cold %s, warm %s, tiny %s\n\n", cacheGoal,
		ratioText(took[cacheByMember]["cold"], took[cacheByHand]["cold"]), ratioText(took[cacheByMember]["warm"], took[cacheByHand]["warm"]),
		ratioText(took[cacheByMember]["tiny"], took[cacheByHand]["tiny"]))
	return nil
}

type cacheRun struct {
	*site
	log *slog.Logger
	// dir has what others than root must reach, and work is beside the site's own directory.
	dir, work string
	// node is the network of the site's node, and cpus are the processors of its member, on which both readers run.
	node netns.Handle
	cpus string
	// hand is where the cache by hand listens.
	hand netip.AddrPort
}

func cacheFile(round int) string { return fmt.Sprintf("run%d.root", round) }

// prepare starts the origin and the cache by hand, and asks for a cluster that reads through its node's. stop ends what was started.
func (c *cacheRun) prepare(ctx context.Context) (stop func() error, err error) {
	var ends []func() error
	stop = func() (err error) {
		for _, end := range slices.Backward(ends) {
			err = errors.Join(err, end())
		}
		return err
	}
	if err := os.WriteFile(c.names(), []byte("hosts: files\n"), 0o644); err != nil {
		return stop, err
	}
	files := filepath.Join(c.dir, "files")
	if err := errors.Join(os.Chmod(c.dir, 0o755), os.Mkdir(files, 0o755)); err != nil {
		return stop, err
	}
	here, err := netns.Current()
	if err != nil {
		return stop, err
	}
	ends = append(ends, here.Close)
	agent, err := c.agentOf("n1")
	if err != nil {
		return stop, err
	}
	if c.node, err = netns.Open(fmt.Sprintf("/proc/%d/ns/net", agent)); err != nil {
		return stop, err
	}
	ends = append(ends, c.node.Close)
	node, err := c.client.Node(ctx, "n1")
	if err != nil {
		return stop, err
	}
	host, err := hostAddressOf(node.Agent.Underlay)
	if err != nil {
		return stop, err
	}
	origin := netip.AddrPortFrom(host, 1094)
	request := api.DatasetRequest{Name: "bench"}
	var paths []string
	random := rand.NewChaCha8([32]byte{1})
	add := func(name string, bytes int) error {
		content := make([]byte, bytes)
		paths = append(paths, "/"+name)
		_, _ = random.Read(content)
		request.Files = append(request.Files, api.DatasetFile{
			URLs: []string{fmt.Sprintf("root://%v//%s", origin, name)}, SizeBytes: int64(bytes), Adler32: fmt.Sprintf("%08x", adler32.Checksum(content)),
		})
		return os.WriteFile(filepath.Join(files, name), content, 0o644)
	}
	for round := range cacheRounds + 1 {
		if err := add(cacheFile(round), cacheFileBytes); err != nil {
			return stop, err
		}
	}
	if err := add(tinyFile, tinyBytes); err != nil {
		return stop, err
	}
	server, err := xrootd.StartServer(ctx, here, xrootd.ServerConfig{Address: origin, Dir: files, Work: filepath.Join(c.dir, "origin")})
	if err != nil {
		return stop, err
	}
	ends = append(ends, server.Stop)
	c.hand = netip.MustParseAddrPort("127.0.0.1:1095")
	cache, err := xrootd.StartCache(ctx, c.node, xrootd.CacheConfig{
		Address: c.hand, Origin: origin.String(), Base: filepath.Join(c.work, "hand"), Dir: filepath.Join(c.work, "hand", "cached"), Work: filepath.Join(c.work, "hand", "cache"), SizeBytes: 4 << 30, BlockBytes: cacheBlockBytes, Paths: paths, PatienceSeconds: 30,
	})
	if err != nil {
		return stop, err
	}
	ends = append(ends, cache.Stop)
	if _, err := c.client.CreateDataset(ctx, request); err != nil {
		return stop, err
	}
	ends = append(ends, func() error { return c.client.DeleteDataset(context.WithoutCancel(ctx), "bench") })
	if _, err := c.client.CreateCluster(ctx, api.ClusterRequest{Name: clusterName, Size: 1, Cores: 1, Memory: c.memory, Datasets: []string{"bench:cached"}}); err != nil {
		return stop, err
	}
	ends = append(ends, func() error { return c.Delete(context.WithoutCancel(ctx)) })
	return stop, nil
}

// hostAddressOf is this machine's address on the network of a node.
func hostAddressOf(underlay string) (netip.Addr, error) {
	node, err := netip.ParseAddr(underlay)
	if err != nil {
		return node, err
	}
	own, err := net.InterfaceAddrs()
	if err != nil {
		return node, err
	}
	for _, o := range own {
		if p, err := netip.ParsePrefix(o.String()); err == nil && p.Contains(node) {
			return p.Addr(), nil
		}
	}
	return node, fmt.Errorf("this machine has no address on the network of the node at %v", node)
}

// names is a file that has names looked up in files alone.
func (c *cacheRun) names() string { return filepath.Join(c.dir, "nsswitch.conf") }

// read reads a file on a side, and returns how many seconds that took.
func (c *cacheRun) read(ctx context.Context, side, name string) (float64, error) {
	var out string
	var err error
	if side == cacheByMember {
		out, err = c.printedBy(ctx, clusterName, shell(fmt.Sprintf(cacheRead, fmt.Sprintf("root://127.0.0.1:%d//%s", api.FirstCachePort, name))))
	} else {
		err = c.node.Do(func() error {
			// XRootD's client looks names up. A node of the site reaches no name server, and would wait for one, which members do not.
			script := "echo localhost >/proc/sys/kernel/hostname; mount --bind " + c.names() + " /etc/nsswitch.conf; " + fmt.Sprintf(cacheRead, fmt.Sprintf("root://%v//%s", c.hand, name))
			said, err := exec.CommandContext(ctx, "unshare", "--uts", "--mount", "taskset", "-c", c.cpus, "sh", "-ec", script).CombinedOutput()
			out = string(said)
			return err
		})
	}
	if err != nil {
		return 0, fmt.Errorf("%w: %s", err, out)
	}
	ns, err := strconv.ParseFloat(strings.TrimSpace(strings.TrimPrefix(out, "read ")), 64)
	if err != nil {
		return 0, fmt.Errorf("the reader printed %q", out)
	}
	return ns / 1e9, nil
}
