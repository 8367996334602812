package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/api/client"
)

// cancelPatience is how long `run` waits for a job that it cancelled: SIGKILL comes after 6 s, and the rest of its output after that.
const cancelPatience = 20 * time.Second

var (
	// errDetached ends following a job at the user's second interrupt.
	errDetached = errors.New("detached from the job")
	// errStillRuns ends following a job that was cancelled and does not end.
	errStillRuns = errors.New("the cancelled job has not ended")
)

// cancelOnInterrupt cancels the job at the first interrupt. It ends following the job at the second, or when patience runs out.
func (a *app) cancelOnInterrupt(ctx context.Context, c *client.Client, id string, leave context.CancelCauseFunc) {
	select {
	case <-ctx.Done():
		return
	case <-a.Interrupts:
	}
	patience := a.CancelPatience
	if patience == 0 {
		patience = cancelPatience
	}
	fmt.Fprintf(a.Streams.Err, "cancelling job %s, waiting up to %s for it to end; interrupt again to stop waiting\n", id, patience)
	asked := make(chan error, 1)
	go func() {
		_, err := c.CancelJob(ctx, id)
		if err != nil && ctx.Err() == nil {
			fmt.Fprintf(a.Streams.Err, "Error: the job could not be cancelled: %v\n", advise(err))
		}
		asked <- err
	}()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-a.Interrupts:
		fmt.Fprintf(a.Streams.Err, "no longer waiting for job %s; 'nearmetal job show %s' reports how it ends\n", id, id)
		leave(errDetached)
	case <-timer.C:
		leave(fmt.Errorf("%w after %s: %s; 'nearmetal job show %s' reports how it ends", errStillRuns, patience, a.whyItRuns(ctx, c, id, asked), id))
	}
}

// whyItRuns says why a cancelled job may not have ended, as far as it can be found out quickly.
func (a *app) whyItRuns(ctx context.Context, c *client.Client, id string, asked <-chan error) string {
	select {
	case err := <-asked:
		if err != nil {
			return fmt.Sprintf("the server did not accept the cancellation; repeat it with 'nearmetal job cancel %s'", id)
		}
	default:
		return fmt.Sprintf("the server has not answered yet; repeat the cancellation with 'nearmetal job cancel %s'", id)
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	job, err := c.Job(ctx, id)
	if err != nil {
		return "the server stored the cancellation and is unreachable now"
	}
	cl, err := c.Cluster(ctx, job.Cluster)
	if err != nil {
		return "the server stored the cancellation"
	}
	for _, m := range cl.Status.Members {
		if m.Phase == api.MemberUnknown && strings.Contains(job.MemberID, "."+m.Name+".") {
			return fmt.Sprintf("its node %s is unreachable, and the job is ended when the node returns", m.Node)
		}
	}
	return "its processes have not exited yet"
}
