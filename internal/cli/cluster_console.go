package cli

import (
	"bytes"
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/api/client"
)

// consoleEscape leaves a member's console: Ctrl-], as in virsh(1) and telnet(1).
const consoleEscape = 0x1d

func (a *app) clusterConsole() *cobra.Command {
	var watch, force, showLog, vnc bool
	var listen string
	cmd := &cobra.Command{
		Use: "console NAME [MEMBER]", Short: "Connect to the serial console of a virtual machine",
		Long: `Connect this terminal to the serial console of a member of stack vm, by default the one of rank 0. The connection goes through the
server, no port is opened anywhere. It begins with the end of what the machine has printed; a node keeps up to 128 KiB of it for as long as the
member exists, also when it failed to boot. Ctrl-] ends the connection.

Any number of users may watch a console, one at a time types. Members of Nearmetal's own environments print what their kernel and their boot
agent report there, and offer no login: use 'nearmetal cluster ssh'.

With --vnc, show the screen of a member whose cluster was created with --display: the command listens on this machine, by default at a free
port of 127.0.0.1, and passes each connection of a VNC viewer on, until Ctrl-C. The viewer needs no password: every user of this machine who can
connect to that address sees the screen and types there. With --listen unix:PATH only the owner of PATH may.

A serial port has no window size. For a full-screen program, run 'stty rows N columns N' on the console first.`,
		Example: `  nearmetal cluster console v1
  nearmetal cluster console v1 v1-3 --watch
  nearmetal cluster console v1 --show-log | grep -i error
  nearmetal cluster console v1 --vnc --listen 127.0.0.1:5901`,
		ValidArgsFunction: a.completeClusterMember,
		Args: func(cmd *cobra.Command, args []string) error {
			switch {
			case len(args) < 1 || len(args) > 2 || args[0] == "":
				return usage("name the cluster, and its member if it is not the first: '%s'", useLine(cmd))
			case watch && force || watch && showLog || force && showLog:
				return usage("--watch, --force and --show-log conflict; give one of them")
			case vnc && (watch || force || showLog):
				return usage("--vnc conflicts with --watch, --force and --show-log, which are for the serial console")
			case listen != "" && !vnc:
				return usage("--listen is for --vnc")
			}
			return nil
		},
	}
	flags := cmd.Flags()
	flags.BoolVar(&watch, "watch", false, "watch, and type nothing")
	flags.BoolVar(&force, "force", false, "disconnect another user who types on the console")
	flags.BoolVar(&showLog, "show-log", false, "print what the machine has printed, and end")
	flags.BoolVar(&vnc, "vnc", false, "show the screen by VNC in place of the serial console")
	flags.StringVar(&listen, "listen", "", "where VNC viewers connect: HOST:PORT or unix:PATH (default: a free port of 127.0.0.1)")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		member := ""
		if len(args) == 2 {
			member = args[1]
		}
		if vnc {
			return a.memberDisplay(cmd.Context(), args[0], member, listen)
		}
		return a.memberConsole(cmd, args[0], member, api.ConsoleRequest{Write: !watch && !showLog, Force: force, KeptOnly: showLog})
	}
	return cmd
}

func (a *app) memberConsole(cmd *cobra.Command, cluster, member string, r api.ConsoleRequest) error {
	c, err := a.client(0)
	if err != nil {
		return err
	}
	cl, err := c.Cluster(cmd.Context(), cluster)
	if err != nil {
		return err
	}
	m, err := findMember(cl, member)
	if err != nil {
		return err
	}
	stream, err := c.ConnectMemberConsole(cmd.Context(), cluster, m.Name, r)
	if client.HasCode(err, "console_in_use") {
		err = fmt.Errorf("%w; watch it with --watch, or disconnect the other user with --force", err)
	}
	if err != nil {
		return err
	}
	filter := untilEscape
	switch in, ok := a.Streams.In.(*os.File); {
	case !r.Write:
		filter = nil
	case !ok || !term.IsTerminal(int(in.Fd())):
		filter = all // of a file no byte is an escape
	}
	if !r.KeptOnly {
		how := "Ctrl-] ends it"
		if !r.Write {
			how = "Ctrl-C ends it"
		}
		fmt.Fprintf(a.Streams.Err, "connected to the console of %s; %s\n", m.Name, how)
	}
	return a.joinConsole(cmd.Context(), stream, m.Name, filter)
}

// untilEscape passes on what is typed before Ctrl-].
func untilEscape(typed []byte) (pass []byte, left bool) {
	pass, _, left = bytes.Cut(typed, []byte{consoleEscape})
	return pass, left
}

func all(typed []byte) (pass []byte, left bool) { return typed, false }
