package agent

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"sync"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/config"
	"github.com/nearmetal/nearmetal/internal/dataset/cache"
	"github.com/nearmetal/nearmetal/internal/dataset/replica"
	"github.com/nearmetal/nearmetal/internal/dataset/transfer"
	"github.com/nearmetal/nearmetal/internal/driver/vm"
	"github.com/nearmetal/nearmetal/internal/environment/build"
	"github.com/nearmetal/nearmetal/internal/nodeimages"
	"github.com/nearmetal/nearmetal/internal/responder"
)

// BuildCommand is the argument by which this program runs as the worker of a build, with a list of CPUs after it to be kept to these (see
// LimitBuild); it is no command for people.
const BuildCommand = "build-environment"

// bootedImage is where the boot agent keeps the image that it booted the machine from.
const bootedImage = "/run/nearmetal/image"

// reserveBytes stay free on the file system of the state directory when images are fetched: members and the agent need some, too.
const reserveBytes = 128 << 20

// leastBuildMemory is what a build may use of any node. On larger ones it is half of the memory that the node offers: a build reserves none, and
// the kernel ends it before any member, but before that happens members get slow.
const leastBuildMemory = 1 << 30

// openImages opens the node's images and its builder, adds them to cfg, and serves images to other nodes. The returned function ends that.
func openImages(ctx context.Context, cfg *Config, opts config.Agent, underlay netip.Addr, node api.NodeRecord, client *http.Client) (*nodeimages.Store, func(), error) {
	changed := make(chan struct{}, 1)
	store, err := nodeimages.Open(nodeimages.Config{
		Dir: filepath.Join(cfg.StateDir, "images"), Booted: bootedImage, Keep: opts.KeepImages, ReserveBytes: reserveBytes,
		Server: cfg.Server + imagesPath, Client: client, Log: cfg.Log, Kernels: len(vm.Missing()) == 0, LayersOnly: opts.MemberMAC != "",
		Changed: func() {
			select {
			case changed <- struct{}{}:
			default:
			}
		},
	})
	if err != nil {
		return nil, nil, err
	}
	cfg.Images, cfg.ImagesChanged = store, changed
	if err := openDatasets(cfg, opts, store); err != nil {
		return nil, nil, err
	}
	cfg.Blobs = serverBlobs{server: cfg.Server, client: client}
	if opts.Builder != config.BuilderOff {
		program, err := os.Executable()
		if err != nil {
			return nil, nil, fmt.Errorf("find this program's file, which builds execute: %w", err)
		}
		worker := []string{program, BuildCommand, cpuList(cpusOf(node))}
		cfg.BuildSources = opts.BuildSources
		sum := sha256.Sum256([]byte(cfg.StateDir)) // two nodes of one machine may have the same name
		cfg.Builder = build.New(build.Config{
			Worker: worker, MemoryBytes: max(leastBuildMemory, node.Capacity.MemoryBytes/2), Group: "build-" + hex.EncodeToString(sum[:4]),
		})
	}
	end := func() {}
	if at := peerAddress(opts.PeerListen, underlay); at != "" {
		if cfg.PeerURL, end, err = servePeers(ctx, cfg, store, at); err != nil {
			return nil, nil, err
		}
	}
	return store, end, nil
}

// openDatasets opens the node's replicas of datasets and adds them to cfg. They go from node to node as images do.
func openDatasets(cfg *Config, opts config.Agent, images *nodeimages.Store) error {
	changed := make(chan struct{}, 1)
	store, err := replica.Open(replica.Config{
		Dir: filepath.Join(cfg.StateDir, "datasets"), MaxBytes: opts.DatasetBytes, ReserveBytes: reserveBytes, Peers: images, Log: cfg.Log,
		Fetcher: transfer.New(transfer.Config{BytesPerSecond: opts.DatasetRate}),
		Changed: func() {
			select {
			case changed <- struct{}{}:
			default:
			}
		},
	})
	if err != nil {
		return err
	}
	cfg.Datasets, cfg.DatasetsChanged = store, changed
	return openCaches(cfg, opts)
}

// originPatience is how many seconds the server of a cached dataset may send nothing until its readers get an error.
const originPatience = 30

// openCaches opens the node's caches of datasets and adds them to cfg.
func openCaches(cfg *Config, opts config.Agent) error {
	if opts.NoCaches {
		return nil
	}
	changed := make(chan struct{}, 1)
	store, err := cache.Open(cache.Config{
		Dir: filepath.Join(cfg.StateDir, "caches"), MaxBytes: opts.CacheBytes, BlockBytes: opts.CacheBlock, Prefetch: opts.CachePrefetch,
		LowPercent: opts.CacheLow, HighPercent: opts.CacheHigh, PatienceSeconds: originPatience, Allow: transfer.Outside, Log: cfg.Log,
		Changed: func() {
			select {
			case changed <- struct{}{}:
			default:
			}
		},
	})
	if err != nil {
		return err
	}
	room := store.Room()
	cfg.Caches, cfg.CachesChanged, cfg.CacheRoom = store, changed, &room
	return nil
}

// openResponder adds the answers to DHCP and DNS to cfg. The returned function ends them.
func openResponder(ctx context.Context, cfg *Config) (end func(), err error) {
	answers, err := responder.New(cfg.Log)
	if err != nil {
		return nil, err
	}
	cfg.Responder = answers
	ctx, cancel := context.WithCancel(ctx)
	var answering sync.WaitGroup
	answering.Go(func() { answers.Run(ctx) })
	return func() {
		cancel()
		answering.Wait()
		_ = answers.Close()
	}, nil
}

// peerAddress is where images are served to other nodes, or "": by default at the node's address on the data network, when that is known.
func peerAddress(option string, underlay netip.Addr) string {
	switch {
	case option == config.PeerListenOff || option == "" && !underlay.IsValid():
		return ""
	default:
		return cmp.Or(option, netip.AddrPortFrom(underlay, 0).String())
	}
}

func servePeers(ctx context.Context, cfg *Config, store *nodeimages.Store, at string) (url string, end func(), err error) {
	listen, err := net.Listen("tcp", at)
	if err != nil {
		return "", nil, fmt.Errorf("images can't be served to other nodes: %w; choose another address with --peer-listen, or set it to off", err)
	}
	peers := nodeimages.NewPeerServer(store, listen, nodeimages.PeerConfig{})
	ctx, cancel := context.WithCancel(ctx)
	var serving sync.WaitGroup
	serving.Go(func() {
		if err := peers.Serve(ctx); err != nil {
			cfg.Log.ErrorContext(ctx, "images are no longer served to other nodes", "error", err)
		}
	})
	return peers.URL(), func() {
		cancel()
		serving.Wait()
	}, nil
}
