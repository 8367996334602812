package cli

import (
	"io"
	"runtime"
	"time"

	"github.com/spf13/cobra"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/config"
)

// versions is what `version` prints.
type versions struct {
	Client api.Version `json:"client"`
	// Server is nil when it can't be reached; Problem then says why.
	Server  *api.Version `json:"server,omitempty"`
	Problem string       `json:"problem,omitempty"`
}

func (a *app) versionCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "version", Short: "Show the versions of this program and of the server", Args: noArgs,
		Long: "Show the versions of this program and of the server. A server that can't be reached is no error here.",
	}
	out := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		v := versions{Client: api.Version{Version: config.Version(), Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}}
		c, err := a.client(5 * time.Second)
		if err == nil {
			var server api.Version
			if server, err = c.Version(cmd.Context()); err == nil {
				v.Server = &server
			}
		}
		if err != nil {
			v.Problem = advise(err).Error()
		}
		return out.print(a.Streams.Out, v, func(w io.Writer) {
			server := v.Problem
			if v.Server != nil {
				server = v.Server.Version + " (" + v.Server.Go + ", " + v.Server.Platform + ")"
			}
			fields(w, "Client", v.Client.Version+" ("+v.Client.Go+", "+v.Client.Platform+")", "Server", server)
		})
	}
	return a.connects(cmd)
}
