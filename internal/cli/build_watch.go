package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/api/client"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
)

// buildView is how much of a build is shown while it goes on.
type buildView int

const (
	viewSteps  buildView = iota // a line for each step, and how far the present one is
	viewOutput                  // all it prints
	viewEnd                     // nothing until it has ended
)

// awaitBuild shows a build until it has ended, and ends as it did.
func (a *app) awaitBuild(ctx context.Context, c *client.Client, b api.Build, view buildView, out *format) error {
	b, err := a.showBuild(ctx, c, b, view)
	if err != nil {
		return err
	}
	switch b.Phase {
	case api.BuildSucceeded:
		return out.print(a.Streams.Out, b, func(w io.Writer) {
			if b.Reused {
				fmt.Fprintf(w, "environment %s is there: %s, an image of the same recipe\n", b.Environment, b.Digest)
				return
			}
			verified := ""
			if len(b.Built) > 1 {
				verified = ", the same on " + lifecycle.BuildersOf(b.Built)
			}
			fmt.Fprintf(w, "environment %s is built: %s%s%s\n", b.Environment, b.Digest, verified, buildTook(b))
		})
	case api.BuildCancelled:
		return &exitError{ExitInterrupted, fmt.Errorf("build %s of environment %q was cancelled", b.ID, b.Environment)}
	default:
		if view != viewOutput {
			a.lastOutput(ctx, c, b)
		}
		return fmt.Errorf("build %s of environment %q failed: %s\nAll it printed is shown by: nearmetal env log %s", b.ID, b.Environment,
			orElse(b.Message, "no reason is known"), b.ID)
	}
}

// showBuild shows a build until it has ended, and returns it then. What can end this earlier does not end the build.
func (a *app) showBuild(ctx context.Context, c *client.Client, b api.Build, view buildView) (api.Build, error) {
	id := b.ID
	var err error
	if view == viewOutput {
		b, err = a.followBuild(ctx, c, id)
	} else {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		b, err = a.watchBuild(ctx, c, id, buildNews(ctx, c, id), view, func(b api.Build) bool { return b.Phase.Ended() })
	}
	return b, goesOn(err, id)
}

// goesOn adds to what ended the showing of a build that the build does not end with it.
func goesOn(err error, id string) error {
	if errors.Is(err, context.Canceled) {
		return fmt.Errorf("%w; build %s goes on: 'nearmetal env log %s --follow', 'nearmetal env cancel %s'", errInterrupted, id, id, id)
	}
	return withoutYou(err, fmt.Sprintf("build %s goes on without you, look again with: nearmetal env log %s --follow", id, id))
}

// withoutYou adds to the error of a server that is away what goes on there; what is to be done about the server stands before that.
func withoutYou(err error, what string) error {
	var away *client.UnreachableError
	if !errors.As(err, &away) {
		return err
	}
	return &exitError{exitCode(err), fmt.Errorf("%s; %s", advise(err).Error(), what)}
}

func buildTook(b api.Build) string {
	if b.StartedAt == nil || b.EndedAt == nil {
		return ""
	}
	return fmt.Sprintf(", in %.1fs", b.EndedAt.Sub(*b.StartedAt).Seconds())
}

func buildNews(ctx context.Context, c *client.Client, id string) *news {
	return watchNews(ctx, c, client.Selection{Kind: api.KindBuild, Name: id})
}

// watchBuild tells the progress of a build until it is as asked.
func (a *app) watchBuild(ctx context.Context, c *client.Client, id string, news *news, view buildView, until func(api.Build) bool) (api.Build, error) {
	steps := buildSteps{p: a.progress(), now: a.Now}
	defer steps.p.stop()
	for {
		b, err := client.Persist(ctx, func(ctx context.Context) (api.Build, error) { return c.Build(ctx, id) })
		if err != nil {
			return api.Build{ID: id}, err
		}
		over := until(b)
		if view != viewEnd && (!over || b.Phase.Ended()) {
			steps.show(b)
		}
		if over {
			return b, nil
		}
		err = news.wait(ctx, func() {
			if view != viewEnd {
				steps.show(b) // a long step prints its progress from time to time
			}
		})
		if err != nil {
			return b, err
		}
	}
}

// buildSteps tells the steps of a build as they go by.
type buildSteps struct {
	p   *progress
	now func() time.Time
	// step is the present one, since when; told is when its progress was told last.
	step        string
	since, told time.Time
}

// tellEvery is how often, where each takes a line of its own, it is told how far a step is.
const tellEvery = 10 * time.Second

func (s *buildSteps) show(b api.Build) {
	now := s.now()
	// What stands after the colon is how far the step is.
	if name, _, _ := strings.Cut(b.Step, ":"); name != s.step {
		if s.step != "" {
			s.p.keep(fmt.Sprintf("%s: %.1fs", s.step, now.Sub(s.since).Seconds()))
		}
		s.step, s.since = name, now
	}
	switch {
	case b.Phase.Ended():
	case b.Phase == api.BuildPending || s.p.terminal:
		s.p.say(buildLine(b))
	case s.told.IsZero() || now.Sub(s.told) >= tellEvery:
		s.told = now
		s.p.say(buildLine(b))
	}
}

// buildLine is what a build does.
func buildLine(b api.Build) string {
	text := fmt.Sprintf("build %s of %s: %s", b.ID, b.Environment, b.Phase)
	switch {
	case b.CancelRequested:
		text += ", being cancelled"
	case b.Phase == api.BuildPending:
		text += ", " + orElse(b.Message, "waits for a builder node")
	case b.Step != "":
		text += fmt.Sprintf(" on %s, %d%%: %s", b.Node, b.Percent, b.Step)
	}
	return text
}

// lastBytes and lastLines are what is shown of the output of a build that failed.
const lastBytes, lastLines = 4096, 15

// lastOutput shows what a build printed last, as far as that can be had: why it failed is told in any case.
func (a *app) lastOutput(ctx context.Context, c *client.Client, b api.Build) {
	var text bytes.Buffer
	if _, err := c.BuildLog(ctx, b.ID, b.Attempt, max(0, b.LogBytes-lastBytes), false, &text); err != nil {
		return
	}
	lines := strings.Split(strings.TrimSpace(text.String()), "\n")
	if lines = lines[max(0, len(lines)-lastLines):]; lines[0] == "" {
		return
	}
	fmt.Fprintf(a.Streams.Err, "what build %s printed last:\n", b.ID)
	for _, line := range lines {
		fmt.Fprintf(a.Streams.Err, "  %s\n", printable(strings.TrimRight(line, "\r")))
	}
}

// followBuild copies the output of a build, attempt after attempt, until it has ended, and returns it then.
func (a *app) followBuild(ctx context.Context, c *client.Client, id string) (api.Build, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	news := buildNews(ctx, c, id)
	attempt := -1
	var offset int64
	for {
		// Before anybody has taken it up there is no output to wait for.
		b, err := a.watchBuild(ctx, c, id, news, viewSteps, func(b api.Build) bool { return b.Phase != api.BuildPending })
		if err != nil {
			return b, err
		}
		if b.Attempt != attempt {
			if attempt >= 0 {
				fmt.Fprintf(a.Streams.Err, "build %s starts again on node %s\n", id, b.Node)
			}
			attempt, offset = b.Attempt, 0
		}
		_, err = client.Persist(ctx, func(ctx context.Context) (struct{}, error) {
			n, err := c.BuildLog(ctx, id, attempt, offset, true, a.Streams.Out)
			offset += n
			return struct{}{}, err
		})
		if err != nil {
			return b, err
		}
		b, err = client.Persist(ctx, func(ctx context.Context) (api.Build, error) { return c.Build(ctx, id) })
		if err != nil {
			return b, err
		}
		if b.Phase.Ended() && b.Attempt == attempt {
			return b, nil
		}
		// The output ended before the build: the server was stopping, or it begins again.
		if err := news.wait(ctx, nil); err != nil {
			return b, err
		}
	}
}
