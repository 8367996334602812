package cli

import (
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/manifest"
)

func (a *app) securityGroupCreate() *cobra.Command {
	var req api.SecurityGroupRequest
	var file string
	cmd := &cobra.Command{
		Use: "create NAME | -f FILE", Short: "Create a security group of a project",
		Long: `Create a security group of a project. A name and flags describe it, or a file (YAML or JSON, "-" for standard input):

  name: web
  rules:
    - in tcp 80 from 0.0.0.0/0
    - in any from group web

Without rules for "in", its ports receive replies alone.`,
		Example: `  nearmetal security-group create web --rule "in tcp 80 from 0.0.0.0/0" --rule "in any from group web"
  nearmetal security-group create -f web.yaml`,
	}
	flags := cmd.Flags()
	flags.StringArrayVar(&req.Rules, "rule", nil, `rule, such as "in tcp 22 from 10.0.0.0/8"; may be repeated`)
	flags.StringVar(&req.Project, "project", "", "project that owns it (default: the token's)")
	flags.StringVarP(&file, "file", "f", "", `file that describes the security group, "-" for standard input`)
	_ = cmd.RegisterFlagCompletionFunc("project", a.completeProjects)
	out := outputFlag(cmd)
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		switch {
		case file == "":
			return oneArg("security group")(cmd, args)
		case len(args) > 0 || flags.Changed("rule") || flags.Changed("project"):
			return usage("a name, --rule and --project can't be given together with a file; write them into the file")
		}
		return nil
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if file != "" {
			var err error
			if req, err = a.readSecurityGroup(file); err != nil {
				return err
			}
		} else {
			req.Name = args[0]
			if err := manifest.CheckSecurityGroup(req, manifest.Flags("name")); err != nil {
				return usage("%v", err)
			}
		}
		c, err := a.client(0)
		if err != nil {
			return err
		}
		g, err := c.CreateSecurityGroup(cmd.Context(), req)
		if err != nil {
			return err
		}
		return out.print(a.Streams.Out, g, func(w io.Writer) { a.printSecurityGroup(w, &g) })
	}
	return cmd
}

// readSecurityGroup reads and checks a file that describes a security group.
func (a *app) readSecurityGroup(path string) (api.SecurityGroupRequest, error) {
	data, form, name, err := a.readDescription(path)
	if err != nil {
		return api.SecurityGroupRequest{}, err
	}
	req, src, err := manifest.Decode[api.SecurityGroupRequest](data, form)
	if err == nil {
		err = manifest.CheckSecurityGroup(req, src)
	}
	if err != nil {
		return req, &exitError{ExitUsage, fmt.Errorf("%s: %w", name, err)}
	}
	return req, nil
}

func (a *app) securityGroupSet() *cobra.Command {
	var rules []string
	var change api.SecurityGroupRules
	var file string
	cmd := &cobra.Command{
		Use: "set NAME | -f FILE", Aliases: []string{"edit"}, Short: "Change the rules of a security group", ValidArgsFunction: a.completeSecurityGroups,
		Long: `Change the rules of a security group. --rule replaces all rules, and so does a file as for 'create'. --add and --remove change some:
the change is made as a whole or not at all. The new rules apply to the ports of running members within moments.

A connection that is open stays open for as long as the member itself sends, even if no rule allows it any more.`,
		Example: `  nearmetal security-group set web --add "in tcp 443 from 0.0.0.0/0" --remove "in tcp 80 from 0.0.0.0/0"
  nearmetal security-group set web --rule "in any from group web"
  nearmetal security-group set -f web.yaml`,
	}
	flags := cmd.Flags()
	flags.StringArrayVar(&rules, "rule", nil, `one of the rules that replace all; may be repeated; "" for none`)
	flags.StringArrayVar(&change.Add, "add", nil, "rule to add; may be repeated")
	flags.StringArrayVar(&change.Remove, "remove", nil, "rule to remove, as 'show' writes it; may be repeated")
	flags.StringVarP(&file, "file", "f", "", `file that describes the security group, "-" for standard input`)
	out := outputFlag(cmd)
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		given := flags.Changed("rule") || flags.Changed("add") || flags.Changed("remove")
		switch {
		case file == "" && !given:
			return usage("give the rules: --rule, --add, --remove or -f FILE; nothing was changed")
		case file == "":
			return oneArg("security group")(cmd, args)
		case len(args) > 0 || given:
			return usage("a name and rules can't be given together with a file; write them into the file")
		}
		return nil
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		name := ""
		switch {
		case file != "":
			req, err := a.readSecurityGroup(file)
			if err != nil {
				return err
			}
			name, change.Rules = fullName(req.Project, req.Name), &req.Rules
		case flags.Changed("rule"):
			rules = slices.DeleteFunc(rules, func(rule string) bool { return rule == "" })
			change.Rules = &rules
			fallthrough
		default:
			name = args[0]
		}
		if change.Rules != nil && *change.Rules == nil {
			change.Rules = &[]string{}
		}
		if err := manifest.CheckSecurityGroupRules(change, nil); err != nil {
			return usage("%v", err)
		}
		c, err := a.client(0)
		if err != nil {
			return err
		}
		g, err := c.ChangeSecurityGroupRules(cmd.Context(), name, change)
		if err != nil {
			return err
		}
		return out.print(a.Streams.Out, g, func(w io.Writer) { a.printSecurityGroup(w, &g) })
	}
	return cmd
}

func (a *app) securityGroupDelete() *cobra.Command {
	cmd := &cobra.Command{
		Use: "delete NAME...", Aliases: []string{"rm"}, Short: "Delete security groups",
		Long:    `Delete security groups. A security group that a cluster or a rule of another security group names is not deleted.`,
		Example: "  nearmetal security-group delete web", ValidArgsFunction: a.completeSecurityGroups,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 || slices.Contains(args, "") {
				return usage("name the security groups to delete; nothing was deleted ('nearmetal security-group list' lists the security groups)")
			}
			return nil
		},
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, err := a.client(0)
		if err != nil {
			return err
		}
		var failed []error
		for _, name := range unique(args) {
			err := c.DeleteSecurityGroup(cmd.Context(), name)
			if err == nil {
				fmt.Fprintf(a.Streams.Out, "security group %s deleted\n", name)
			}
			failed = append(failed, err)
		}
		return errors.Join(failed...)
	}
	return cmd
}
