package agent

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/agentstream"
	"github.com/nearmetal/nearmetal/internal/environment/build"
	"github.com/nearmetal/nearmetal/internal/environment/recipe"
	"github.com/nearmetal/nearmetal/internal/filetree"
	"github.com/nearmetal/nearmetal/internal/image"
)

// Builder builds environments on this node; *build.Builder does.
type Builder interface {
	Check(ctx context.Context) api.BuilderCheck
	Run(ctx context.Context, job build.Job) (build.Result, error)
}

// Blobs is the server's store of images.
type Blobs interface {
	// Upload stores the file of a blob, unless the server has it.
	Upload(ctx context.Context, blob image.Blob, path string) error
	// Download writes a blob to a file, verified.
	Download(ctx context.Context, digest image.Digest, path string) error
}

// buildState is one attempt of a build that was asked of this node. It is owned by loop, but for its log.
type buildState struct {
	want     api.Build
	wanted   bool
	seen     agentstream.BuildObserved
	begun    bool
	busy     bool // its goroutine runs
	cancel   context.CancelFunc
	asked    storedLog // where the server wants its output from, said before there was any
	log      *buildLog
	finished func() // lets the log's goroutine end
}

// buildResult is kept on disk when a build ends, so that an agent that starts again tells it.
const (
	buildResultFile = "result.json"
	buildLogFile    = "log"
)

func (a *Agent) buildsDir() string { return filepath.Join(a.cfg.StateDir, "builds") }

func (a *Agent) buildDir(runID string) string { return filepath.Join(a.buildsDir(), runID) }

// recoverBuilds finds what an earlier run of the agent left of builds: those that had ended tell how; one that was under way ended with that
// agent, since its processes do, and says so.
func (a *Agent) recoverBuilds(ctx context.Context) error {
	entries, err := os.ReadDir(a.buildsDir())
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look for builds on this node: %w", err)
	}
	for _, e := range entries {
		dir := filepath.Join(a.buildsDir(), e.Name())
		seen, err := loadBuild(dir, e.Name())
		if err != nil {
			a.cfg.Log.Warn("removing the remains of a build", "build", e.Name(), "error", err)
			a.work.Go(func() { a.removeBuild(ctx, e.Name(), dir) })
			continue
		}
		a.work.Go(func() { a.removeBuild(ctx, e.Name(), workDirs(dir)...) })
		log, err := openBuildLog(filepath.Join(dir, buildLogFile))
		if err != nil {
			return err
		}
		seen.LogBytes = log.size()
		b := &buildState{seen: seen, begun: true, log: log}
		a.builds[e.Name()] = b
		a.pumpBuild(ctx, e.Name(), b)
	}
	return nil
}

// loadBuild reads how a build ended, or makes of one that has not ended one that failed.
func loadBuild(dir, runID string) (agentstream.BuildObserved, error) {
	var seen agentstream.BuildObserved
	data, err := os.ReadFile(filepath.Join(dir, buildResultFile))
	if err == nil {
		return seen, json.Unmarshal(data, &seen)
	}
	id, attempt, ok := strings.Cut(strings.TrimPrefix(runID, "build."), ".")
	number, numberErr := strconv.Atoi(attempt)
	if !ok || numberErr != nil || !errors.Is(err, os.ErrNotExist) {
		return seen, errors.Join(err, errors.New("the directory belongs to no build"))
	}
	now := time.Now()
	return agentstream.BuildObserved{
		ID: id, Attempt: number, Phase: api.BuildFailed, EndedAt: &now,
		Message: "the node's agent was restarted during the build; build the environment again",
	}, nil
}

// wantBuilds takes over the builds that the leader wants of this node; what it no longer names is ended and forgotten.
func (a *Agent) wantBuilds(ctx context.Context, d *agentstream.Desired) {
	named := map[string]api.Build{}
	for _, b := range d.Builds {
		named[b.RunID()] = b
		if a.builds[b.RunID()] == nil {
			a.builds[b.RunID()] = &buildState{seen: agentstream.BuildObserved{ID: b.ID, Attempt: b.Attempt, Phase: api.BuildPending}, finished: func() {}}
		}
	}
	for run, b := range a.builds {
		b.want, b.wanted = named[run]
		if _, b.wanted = named[run]; b.wanted {
			continue
		}
		if b.cancel != nil {
			b.cancel()
		}
		if !b.busy {
			a.forgetBuild(ctx, run, b)
		}
	}
}

// forgetBuild removes what is left of a build that nobody asks for; the next one begins once it is gone.
func (a *Agent) forgetBuild(ctx context.Context, run string, b *buildState) {
	b.finished()
	if b.log != nil {
		b.log.close()
	}
	b.busy = true
	a.work.Go(func() {
		a.removeBuild(ctx, run, a.buildDir(run))
		a.post(ctx, func() { delete(a.builds, run) })
	})
}

// workDirs are where a build works, below its directory.
func workDirs(dir string) []string {
	return []string{filepath.Join(dir, "scratch"), filepath.Join(dir, "out"), filepath.Join(dir, "bases")}
}

// removeBuild removes directories of a build. It must not hold up the loop: a recipe chose how much there is. What an agent that
// ends has not removed, the next one does (recoverBuilds).
func (a *Agent) removeBuild(ctx context.Context, run string, dirs ...string) {
	for _, dir := range dirs {
		if err := filetree.Remove(ctx, dir); err != nil && ctx.Err() == nil {
			a.cfg.Log.WarnContext(ctx, "the remains of a build can't be removed", "build", run, "error", err)
		}
	}
}

// convergeBuilds begins the next build when none is under way: one at a time, so that members keep their cores.
func (a *Agent) convergeBuilds(ctx context.Context) {
	if !a.hearing.current() {
		return
	}
	for _, b := range a.builds {
		if b.busy {
			return
		}
	}
	for _, run := range slices.Sorted(maps.Keys(a.builds)) {
		b := a.builds[run]
		if b.begun || !b.wanted {
			continue
		}
		if err := a.beginBuild(ctx, run, b); err != nil {
			a.endBuild(ctx, run, b, "", err)
			continue
		}
		return
	}
}

// beginBuild starts a build's goroutine.
func (a *Agent) beginBuild(ctx context.Context, run string, b *buildState) error {
	b.begun = true
	if a.cfg.Builder == nil {
		return errors.New("this node can't build environments: its agent has no builder")
	}
	if err := os.MkdirAll(a.buildDir(run), 0o700); err != nil {
		return err
	}
	log, err := openBuildLog(filepath.Join(a.buildDir(run), buildLogFile))
	if err != nil {
		return err
	}
	b.log = log
	if b.asked.stream != 0 {
		log.ack(b.asked.offset, b.asked.stream, true)
	}
	a.pumpBuild(ctx, run, b)
	now := time.Now()
	b.seen.Phase, b.seen.StartedAt, b.seen.Step, b.busy = api.BuildRunning, &now, "starting", true
	buildCtx, cancel := context.WithCancel(ctx)
	b.cancel = cancel
	want := b.want
	a.work.Go(func() {
		manifest, err := a.build(buildCtx, run, want, log, func(step string, percent int) {
			a.post(ctx, func() { b.seen.Step, b.seen.Percent = step, percent })
		})
		cancel()
		a.removeBuild(ctx, run, workDirs(a.buildDir(run))...)
		a.post(ctx, func() {
			b.busy, b.cancel = false, nil
			if ctx.Err() != nil {
				return // it was not cancelled: this agent ends, and the next one says so
			}
			a.endBuild(ctx, run, b, manifest, err)
			if !b.wanted {
				a.forgetBuild(ctx, run, b)
			}
		})
	})
	return nil
}

// endBuild notes how a build ended, and keeps it.
func (a *Agent) endBuild(ctx context.Context, run string, b *buildState, manifest image.Digest, err error) {
	now := time.Now()
	b.seen.Phase, b.seen.Manifest, b.seen.EndedAt, b.seen.Step = api.BuildSucceeded, manifest, &now, ""
	switch {
	case err != nil && errors.Is(err, context.Canceled):
		b.seen.Phase, b.seen.Message = api.BuildCancelled, "the build was cancelled"
	case err != nil:
		b.seen.Phase, b.seen.Message = api.BuildFailed, err.Error()
	default:
		b.seen.Percent = 100
	}
	a.cfg.Log.InfoContext(ctx, "a build ended", "build", run, "phase", b.seen.Phase, "message", b.seen.Message, "manifest", manifest)
	data, err := json.Marshal(b.seen)
	if err == nil {
		err = writeDurably(filepath.Join(a.buildDir(run), buildResultFile), data)
	}
	if err != nil {
		a.cfg.Log.WarnContext(ctx, "the result of a build can't be stored", "build", run, "error", err)
	}
}

// build builds and uploads; what it leaves is the log.
func (a *Agent) build(ctx context.Context, run string, want api.Build, log *buildLog, progress func(string, int)) (image.Digest, error) {
	dir := a.buildDir(run)
	parsed, err := recipe.Parse([]byte(want.Recipe))
	if err != nil {
		return "", err
	}
	bases, err := a.bases(ctx, dir, parsed.Needs(), want.Bases)
	if err != nil {
		return "", err
	}
	disk, err := a.fetchNamed(ctx, dir, "disk", parsed.Base.Disk)
	if err != nil {
		return "", fmt.Errorf("the uploaded disk image: %w; import it again: nearmetal env import", err)
	}
	changes, err := a.fetchNamed(ctx, dir, "changes", parsed.Changes)
	if err != nil {
		return "", fmt.Errorf("the saved files: %w; save the cluster again: nearmetal cluster save --files", err)
	}
	result, err := a.cfg.Builder.Run(ctx, build.Job{
		ID: cmp.Or(strings.ReplaceAll(strings.TrimPrefix(run, "build."), ".", "-"), "x"), Recipe: parsed, Bases: bases, Disk: disk, Changes: changes,
		Scratch: filepath.Join(dir, "scratch"), Output: filepath.Join(dir, "out"), Sources: a.cfg.BuildSources, Cache: filepath.Join(a.cfg.StateDir, "build-cache"),
		// Uploading is the last tenth.
		Progress: func(step string, percent int) { progress(step, percent*9/10) }, Log: log,
	})
	if err != nil {
		return "", err
	}
	for i, blob := range result.Blobs {
		progress("uploading the image", 90+10*i/len(result.Blobs))
		if err := a.cfg.Blobs.Upload(ctx, blob, filepath.Join(dir, "out", blob.Digest.Hex())); err != nil {
			return "", fmt.Errorf("the image can't be uploaded: %w", err)
		}
	}
	return result.Digest, nil
}

// bases fetches the images that a recipe stands on. Their digests came from the leader, so content that fits them is theirs.
func (a *Agent) bases(ctx context.Context, dir string, names []string, digests map[string]string) (map[string]build.Base, error) {
	bases := map[string]build.Base{}
	blobs := filepath.Join(dir, "bases")
	for _, name := range names {
		digest := image.Digest(digests[name])
		if err := digest.Check(); err != nil {
			return nil, fmt.Errorf("base environment %q is not built; build it first", name)
		}
		fetch := func(d image.Digest) error {
			if err := os.MkdirAll(blobs, 0o700); err != nil {
				return err
			}
			return a.cfg.Blobs.Download(ctx, d, filepath.Join(blobs, d.Hex()))
		}
		if err := fetch(digest); err != nil {
			return nil, err
		}
		data, err := os.ReadFile(filepath.Join(blobs, digest.Hex()))
		if err != nil {
			return nil, err
		}
		m, err := image.Decode(data, digest)
		if err != nil {
			return nil, err
		}
		for _, blob := range m.Blobs() {
			if err := fetch(blob.Digest); err != nil {
				return nil, err
			}
		}
		bases[name] = build.Base{Manifest: m, Blobs: blobs}
	}
	return bases, nil
}

// fetchNamed fetches a file that a recipe names by its digest; "" for none.
func (a *Agent) fetchNamed(ctx context.Context, dir, name, digest string) (string, error) {
	if digest == "" {
		return "", nil
	}
	blobs := filepath.Join(dir, "bases")
	if err := os.MkdirAll(blobs, 0o700); err != nil {
		return "", err
	}
	path := filepath.Join(blobs, name)
	return path, a.cfg.Blobs.Download(ctx, image.Digest(digest), path)
}

func (a *Agent) observedBuilds() []agentstream.BuildObserved {
	var list []agentstream.BuildObserved
	for _, run := range slices.Sorted(maps.Keys(a.builds)) {
		b := a.builds[run]
		if b.log != nil {
			b.seen.LogBytes = b.log.size()
		}
		list = append(list, b.seen)
	}
	return list
}
