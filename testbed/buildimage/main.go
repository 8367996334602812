// Command buildimage builds shipped environments for the virtual data centre and for tests, without a site: go run ./testbed/buildimage NAME...
//
// Images are kept below the cache directory: a file for each blob, named by its digits, and NAME.digest with the digest of the manifest.
// What is there is not built again, unless its recipe or the boot agent changed. It needs root, mmdebstrap and a Debian mirror.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/nearmetal/nearmetal/internal/environment/build"
	"github.com/nearmetal/nearmetal/internal/environment/recipe"
	"github.com/nearmetal/nearmetal/internal/image"
	"github.com/nearmetal/nearmetal/recipes"
)

const workerArgument = "build-environment"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "buildimage:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	if len(os.Args) == 2 && os.Args[1] == workerArgument {
		return build.Worker(ctx)
	}
	cache := flag.String("cache", "/var/cache/nearmetal/testbed/images", "where images are kept")
	force := flag.Bool("force", false, "build even if the image exists")
	flag.Parse()
	self, err := os.Executable()
	if err != nil {
		return err
	}
	c := &imageCache{
		dir: *cache, force: *force,
		builder: build.New(build.Config{Worker: []string{self, workerArgument}}),
	}
	for _, name := range flag.Args() {
		if _, err := c.ensure(ctx, name); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

type imageCache struct {
	dir     string
	force   bool
	builder *build.Builder
}

// ensure returns the image, built unless it is there.
func (c *imageCache) ensure(ctx context.Context, name string) (build.Base, error) {
	text, ok := recipes.Catalog{}.Shipped(name)
	if !ok {
		return build.Base{}, fmt.Errorf("unknown recipe; the recipes are %s", strings.Join(recipes.Catalog{}.ShippedNames(), ", "))
	}
	r, err := recipe.Parse(text)
	if err != nil {
		return build.Base{}, err
	}
	bases := map[string]build.Base{}
	key := r.Digest()
	for _, need := range r.Needs() {
		base, err := c.ensure(ctx, need)
		if err != nil {
			return build.Base{}, err
		}
		bases[need] = base
		_, digest, err := base.Manifest.Encode()
		if err != nil {
			return build.Base{}, err
		}
		key += " " + string(digest)
	}
	if m, err := c.lookup(name, key); err == nil && !c.force {
		return build.Base{Manifest: m, Blobs: c.dir}, nil
	}
	begin := time.Now()
	result, err := c.builder.Run(ctx, build.Job{
		ID: name, Recipe: r, Scratch: filepath.Join(c.dir, "scratch"), Output: c.dir, Cache: filepath.Join(c.dir, "packages"), Bases: bases,
		Progress: func(step string, percent int) {
			fmt.Fprintf(os.Stderr, "%5.1f s %3d %% %s\n", time.Since(begin).Seconds(), percent, step)
		},
		Log: os.Stdout,
	})
	if err != nil {
		return build.Base{}, err
	}
	report(result, time.Since(begin))
	return build.Base{Manifest: result.Manifest, Blobs: c.dir},
		os.WriteFile(filepath.Join(c.dir, name+".digest"), []byte(string(result.Digest)+"\n"+key+"\n"), 0o644)
}

// lookup finds an image made from the same things.
func (c *imageCache) lookup(name, key string) (*image.Manifest, error) {
	text, err := os.ReadFile(filepath.Join(c.dir, name+".digest"))
	if err != nil {
		return nil, err
	}
	digest, made, _ := strings.Cut(strings.TrimSpace(string(text)), "\n")
	if made != key {
		return nil, errors.New("made from other input")
	}
	data, err := os.ReadFile(filepath.Join(c.dir, image.Digest(digest).Hex()))
	if err != nil {
		return nil, err
	}
	return image.Decode(data, image.Digest(digest))
}

func report(r build.Result, took time.Duration) {
	m := r.Manifest
	fmt.Fprintf(os.Stderr, "%s %s\n  built in %.1f s; root %.1f MiB of %.1f MiB unpacked", m.Environment, r.Digest, took.Seconds(), mib(m.Root.SizeBytes), mib(m.Root.UnpackedBytes))
	for _, l := range m.Layers {
		fmt.Fprintf(os.Stderr, ", layer %.1f MiB of %.1f MiB", mib(l.SizeBytes), mib(l.UnpackedBytes))
	}
	if m.Metal != nil {
		fmt.Fprintf(os.Stderr, "; kernel %s %.1f MiB, initrd %.1f MiB", m.Metal.KernelVersion, mib(m.Metal.Kernel.SizeBytes), mib(m.Metal.Initrd.SizeBytes))
	}
	fmt.Fprintln(os.Stderr)
}

func mib(n int64) float64 { return float64(n) / (1 << 20) }
