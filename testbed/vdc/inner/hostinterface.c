/*
 * A module of OpenIPMI's ipmi_sim: firmware firewall and command discovery of the system interface (IPMI v2.0 rev. 1.1, chapter 21).
 *
 * ipmi_sim itself has no such commands. With this module it answers Get NetFn Support, Get Configurable Commands, Set Command Enables and
 * Get Command Enables for channel 0Fh, and refuses what is disabled when it comes by that channel, which is KCS. This is an emulation for
 * tests: it was written from the specification, and no BMC was at hand to compare it with.
 *
 * The option "fixed" leaves out all of that: the host interface of such a BMC can't be closed. With "deaf", the BMC takes what is set there, and new
 * passwords, and does not follow.
 */
#include <stdio.h>
#include <string.h>

#include <OpenIPMI/mcserv.h>

enum {
	system_interface = 0x0f,
	app = 0x06,
	get_netfn_support = 0x09,
	get_configurable_commands = 0x0c,
	set_user_password = 0x47,
	set_command_enables = 0x60,
	get_command_enables = 0x61,

	completed = 0x00,
	invalid_command = 0xc1,
	length_invalid = 0xc7,
	field_invalid = 0xcc,

	netfns = 64,
	half_bytes = 16,
};

/* The functions that ipmi_sim has for the system interface: chassis, sensors, applications, storage, transport. */
static const unsigned char present[] = {0x00, 0x04, app, 0x0a, 0x0c};

/* A bit for each command that is disabled, by number of the function. */
static unsigned char disabled[netfns][2 * half_bytes];

static int is_present(unsigned char netfn)
{
	for (unsigned i = 0; i < sizeof(present); i++)
		if (present[i] == netfn)
			return 1;
	return 0;
}

/* gate answers what comes by the system interface and is disabled; 0: it goes on to ipmi_sim. */
static int gate(channel_t *channel, msg_t *msg, unsigned char *answer, unsigned int *length)
{
	(void)channel;
	if (is_present(msg->netfn) && !(disabled[msg->netfn][msg->cmd / 8] >> msg->cmd % 8 & 1))
		return 0;
	answer[0] = invalid_command;
	*length = 1;
	return 1;
}

static void fail(unsigned char *answer, unsigned int *length, unsigned char code)
{
	answer[0] = code;
	*length = 1;
}

/* One bit for each pair of functions, four bytes for each LUN; all are on LUN 0 (table 21-2). */
static void answer_netfn_support(lmc_data_t *mc, msg_t *msg, unsigned char *answer, unsigned int *length, void *data)
{
	(void)mc, (void)data;
	if (msg->len < 1)
		return fail(answer, length, length_invalid);
	if ((msg->data[0] & 0x0f) != system_interface)
		return fail(answer, length, field_invalid);
	memset(answer, 0, 18);
	answer[0] = completed;
	answer[1] = 1;
	for (unsigned i = 0; i < sizeof(present); i++)
		answer[2 + present[i] / 2 / 8] |= 1 << present[i] / 2 % 8;
	*length = 18;
}

/* half reads channel, function with the half of its commands, and LUN; NULL: the request was refused (tables 21-5, 21-8, 21-9). */
static unsigned char *half(msg_t *msg, unsigned int least, unsigned char *answer, unsigned int *length)
{
	if (msg->len < least) {
		fail(answer, length, length_invalid);
		return NULL;
	}
	unsigned char netfn = msg->data[1] & 0x3f, which = msg->data[1] >> 6;
	if ((msg->data[0] & 0x0f) != system_interface || !is_present(netfn) || which > 1 || msg->data[2] & 3) {
		fail(answer, length, field_invalid);
		return NULL;
	}
	return disabled[netfn] + which * half_bytes;
}

static void answer_configurable(lmc_data_t *mc, msg_t *msg, unsigned char *answer, unsigned int *length, void *data)
{
	(void)mc, (void)data;
	if (!half(msg, 3, answer, length))
		return;
	answer[0] = completed;
	memset(answer + 1, 0xff, half_bytes);
	*length = 1 + half_bytes;
}

static void answer_enables(lmc_data_t *mc, msg_t *msg, unsigned char *answer, unsigned int *length, void *data)
{
	(void)mc, (void)data;
	unsigned char *bits = half(msg, 3, answer, length);
	if (!bits)
		return;
	answer[0] = completed;
	for (unsigned i = 0; i < half_bytes; i++)
		answer[1 + i] = ~bits[i];
	*length = 1 + half_bytes;
}

static void take_enables(lmc_data_t *mc, msg_t *msg, unsigned char *answer, unsigned int *length, void *data)
{
	(void)mc, (void)data;
	unsigned char *bits = half(msg, 3 + half_bytes, answer, length);
	if (!bits)
		return;
	for (unsigned i = 0; i < half_bytes; i++)
		bits[i] = ~msg->data[3 + i];
	fail(answer, length, completed);
}

static void take_nothing(lmc_data_t *mc, msg_t *msg, unsigned char *answer, unsigned int *length, void *data)
{
	(void)mc, (void)msg, (void)data;
	fail(answer, length, completed);
}

/* ipmi_sim calls it once the channels are known. */
int ipmi_sim_module_init(sys_data_t *sys, const char *options)
{
	if (options && strcmp(options, "fixed") == 0)
		return 0;
	if (sys->chan_set[system_interface])
		sys->chan_set[system_interface]->oem_intf_recv_handler = gate;
	int deaf = options && strcmp(options, "deaf") == 0;
	int problem = ipmi_emu_register_cmd_handler(app, get_netfn_support, answer_netfn_support, NULL);
	if (!problem)
		problem = ipmi_emu_register_cmd_handler(app, get_configurable_commands, answer_configurable, NULL);
	if (!problem)
		problem = ipmi_emu_register_cmd_handler(app, set_command_enables, deaf ? take_nothing : take_enables, NULL);
	if (!problem)
		problem = ipmi_emu_register_cmd_handler(app, get_command_enables, answer_enables, NULL);
	if (!problem && deaf)
		problem = ipmi_emu_register_cmd_handler(app, set_user_password, take_nothing, NULL);
	return problem;
}
