package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/api/client"
	"github.com/nearmetal/nearmetal/internal/manifest"
)

// runFlags are the flags of `run`.
type runFlags struct {
	ranks  int
	env    map[string]string
	dir    string
	detach bool
	// requeue and signal say what happens when a member is lost.
	requeue bool
	signal  string
}

func (a *app) runCommand() *cobra.Command {
	var f runFlags
	cmd := &cobra.Command{
		Use:   "run CLUSTER [-n RANKS] [--] COMMAND [ARG...]",
		Short: "Run a job on a cluster and show its output",
		Long: `Run a command on a cluster: with -n as so many MPI ranks (mpirun over the cluster's hostfile), without -n once on the first
member. Its output is shown as it comes, standard output and error in one. Its standard input is empty: data that is piped into this
command is not passed on, and a warning says so. Flags end where the command begins.

The job is a stored object: it continues when this command or the server goes away. Ctrl-C or SIGTERM cancels the job, and this command
waits up to 20 seconds for it to end. A second Ctrl-C ends the wait at once. Either way the exit code is 130. A job whose node is
unreachable is cancelled when the node returns; 'nearmetal job show' reports how it ended. A cancelled job gets SIGINT, SIGTERM 4 seconds
later and SIGKILL 2 seconds after that. On a cluster whose time limit has passed, a job gets SIGTERM, and SIGKILL 25 seconds later.

A job that prints faster than its output can be stored waits. Output beyond the site's limit for one job is discarded and counted: a warning
on standard error and 'nearmetal job show' say how much.

When a member of the cluster is lost while the job runs, its processes get the failure signal, and it goes on if it can. With --requeue it
is ended, unless it ends by itself with 0, and run again from its start once the cluster is whole; when --failure-signal is given, it has
4 seconds after the signal before it is ended. The output of each attempt is kept.

The exit code is the job's own (128 + N when signal N ended it). When the job could not be run, it is one of this program's,
and a line that begins with "Error:" is written to standard error; see "Exit codes".`,
		Example: `  nearmetal run c1 -n 4 -- ./hello
  nearmetal run c1 hostname
  nearmetal run c1 -n 2 --detach ./long-job`,
		Annotations:       map[string]string{ownInterrupts: "yes"},
		ValidArgsFunction: a.completeClusters(1),
	}
	flags := cmd.Flags()
	flags.IntVarP(&f.ranks, "ranks", "n", 0, "number of MPI ranks (default: run once, without mpirun)")
	flags.Var(variables{&f.env}, "env", "environment variable NAME=VALUE, may be repeated")
	flags.StringVar(&f.dir, "dir", "", "working directory (default: the shared home)")
	flags.BoolVar(&f.detach, "detach", false, "print the job's ID and do not wait for it")
	flags.BoolVar(&f.requeue, "requeue", false, "run it again, from its start, when a member is lost meanwhile")
	flags.StringVar(&f.signal, "failure-signal", "", "signal its processes get when a member is lost, like USR1 (default: URG, which most ignore)")
	// The first word is the cluster, the second begins the command: what follows is the command's, flags too.
	flags.SetInterspersed(false)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		cluster, command, err := splitRun(cmd, args)
		if errors.Is(err, pflag.ErrHelp) {
			return cmd.Help()
		}
		if err != nil {
			return err
		}
		if cmd.Flags().Changed("ranks") && f.ranks < 1 {
			return usage("-n is %d; give at least 1 rank", f.ranks)
		}
		c, err := a.client(0)
		if err != nil {
			return err
		}
		req := api.JobRequest{Command: command, Ranks: f.ranks, Env: f.env, Directory: f.dir, Requeue: f.requeue, FailureSignal: f.signal}
		if err := checkJob(req); err != nil {
			return err
		}
		return a.run(cmd.Context(), c, cluster, req, f.detach)
	}
	return cmd
}

// checkJob finds what is wrong with a job before anything is sent, and names it by its flag.
func checkJob(req api.JobRequest) error {
	words := append(slices.Clone(req.Command), req.Directory)
	for _, value := range req.Env {
		words = append(words, value)
	}
	for _, word := range words {
		if !utf8.ValidString(word) { // JSON would silently replace the bytes in question
			return usage("%q is not UTF-8 text, which a job's command, environment and directory have to be", word)
		}
	}
	err := manifest.CheckJob(req, nil)
	var invalid *manifest.Invalid
	if errors.As(err, &invalid) {
		return &exitError{ExitUsage, errors.New(asFlags(invalid).Error())}
	}
	return err
}

// splitRun finds the cluster and the command among the arguments, and the flags between them.
func splitRun(cmd *cobra.Command, args []string) (cluster string, command []string, err error) {
	if len(args) == 0 || args[0] == "" {
		return "", nil, usage("name the cluster to run on: '%s'", cmd.UseLine())
	}
	if err := cmd.Flags().Parse(args[1:]); err != nil {
		return "", nil, cmd.FlagErrorFunc()(cmd, err)
	}
	if help, err := cmd.Flags().GetBool("help"); err == nil && help {
		return "", nil, pflag.ErrHelp
	}
	if command = cmd.Flags().Args(); len(command) == 0 {
		return "", nil, usage("give the command to run: '%s'", cmd.UseLine())
	}
	return args[0], command, nil
}

// run stores the job, shows its output, and ends as the job did.
func (a *app) run(ctx context.Context, c *client.Client, cluster string, req api.JobRequest, detach bool) error {
	job, err := c.CreateJob(ctx, cluster, req)
	if err != nil {
		return err
	}
	input := a.unreadInput(cluster)
	input.warn()
	if detach {
		fmt.Fprintln(a.Streams.Out, job.ID)
		return nil
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go a.cancelOnInterrupt(ctx, c, job.ID, cancel)
	job, err = a.followJob(ctx, c, job.ID)
	input.warn() // what was piped may have come later than the job
	switch left := context.Cause(ctx); {
	case errors.Is(left, errDetached):
		return &exitError{ExitInterrupted, nil}
	case errors.Is(left, errStillRuns):
		return &exitError{ExitInterrupted, left}
	case err != nil:
		return fmt.Errorf("%w (the job goes on as %s: 'nearmetal job show %s')", err, job.ID, job.ID)
	}
	return a.endOf(job)
}

// followJob copies the output of a job, attempt after attempt, until it has ended, and returns it then.
func (a *app) followJob(ctx context.Context, c *client.Client, id string) (api.Job, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var offset int64
	var news *news
	attempt := 0
	for {
		n, err := c.JobAttemptLog(ctx, id, attempt, offset, true, a.Streams.Out)
		offset += n
		if err != nil {
			return api.Job{ID: id}, err
		}
		job, err := c.Job(ctx, id)
		if err != nil {
			return api.Job{ID: id}, err
		}
		if job.Attempt > attempt {
			attempt, offset = attempt+1, 0
			fmt.Fprintf(a.Streams.Err, "job %s runs again from its start: attempt %d\n", id, attempt+1)
			continue
		}
		if job.Phase.Ended() {
			return job, nil
		}
		// The output ended before the job: the server was stopping.
		if news == nil {
			news = watchNews(ctx, c, client.Selection{Kind: api.KindJob, Name: id})
		}
		if err := news.wait(ctx, nil); err != nil {
			return job, err
		}
	}
}

// warnDiscarded says that the output which was shown is not all that the job printed.
func (a *app) warnDiscarded(job api.Job) {
	if job.DiscardedBytes > 0 {
		fmt.Fprintf(a.Streams.Err, "warning: %d bytes of the output of job %s were discarded: they were over the limit of stored output, or could not be stored in time; redirect large output to a file\n",
			job.DiscardedBytes, job.ID)
	}
}

// endOf turns the end of a job into the end of this command.
func (a *app) endOf(job api.Job) error {
	a.warnDiscarded(job)
	say := func(text string) {
		if job.Message != "" {
			text += ": " + job.Message
		}
		fmt.Fprintf(a.Streams.Err, "job %s %s\n", job.ID, printable(text))
	}
	switch {
	case job.Phase == api.JobSucceeded:
		return nil
	case job.Phase == api.JobCancelled:
		say("was cancelled")
		return &exitError{ExitInterrupted, nil}
	case job.ExitCode != nil && *job.ExitCode != 0:
		say(fmt.Sprintf("ended with exit code %d", *job.ExitCode))
		return &exitError{*job.ExitCode, nil}
	case job.Phase == api.JobLost:
		return fmt.Errorf("job %s was lost: %s", job.ID, orElse(job.Message, "its member or cluster went away"))
	default:
		return fmt.Errorf("job %s could not be run: %s", job.ID, orElse(job.Message, "no reason is known"))
	}
}

func orElse(text, otherwise string) string {
	if text == "" {
		return otherwise
	}
	return text
}
