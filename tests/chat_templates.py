"""Chat templates written for tests with what published ones do: join, trim, split, look into content, loop over parts and
tools. Each with the control tokens that it writes and never looks for."""

CHATML = """{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nYou help. Names: <|im_end|>\n' }}{% endif %}
{{- '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""

THINKING = """{%- if tools %}{{ '<|im_start|>system\n' }}{% if messages[0].role == 'system' %}{{ messages[0].content + '\n\n' }}{% endif %}# Tools
{% for tool in tools %}{{ "\n" }}{{ tool | tojson }}{% endfor %}{{ '<|im_end|>\n' }}
{%- elif messages[0].role == 'system' %}{{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}{% endif %}
{%- set ns = namespace(open=true, last=messages|length - 1) %}
{%- for m in messages[::-1] %}{% set i = (messages|length - 1) - loop.index0 %}
  {%- if ns.open and m.role == "user" and m.content is string and not(m.content.startswith('<tool_response>') and m.content.endswith('</tool_response>')) %}{% set ns.open = false %}{% set ns.last = i %}{% endif %}
{%- endfor %}
{%- for m in messages %}{% set content = m.content if m.content is string else '' %}
  {%- if m.role == 'user' or (m.role == 'system' and not loop.first) %}{{- '<|im_start|>' + m.role + '\n' + content + '<|im_end|>' + '\n' }}
  {%- elif m.role == 'assistant' %}{% set thought = '' %}
    {%- if m.reasoning_content is string %}{% set thought = m.reasoning_content %}
    {%- elif '</think>' in content %}{% set thought = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}{% set content = content.split('</think>')[-1].lstrip('\n') %}{% endif %}
    {%- if loop.index0 > ns.last and (loop.last or thought) %}{{- '<|im_start|>' + m.role + '\n<think>\n' + thought.strip('\n') + '\n</think>\n\n' + content.lstrip('\n') }}
    {%- else %}{{- '<|im_start|>' + m.role + '\n' + content }}{% endif %}
    {%- for call in m.tool_calls or [] %}{% set f = call.function or call %}{{- '\n<tool_call>\n{"name": "' + f.name + '", "arguments": ' }}{{ f.arguments if f.arguments is string else f.arguments | tojson }}{{ '}\n</tool_call>' }}{% endfor %}{{- '<|im_end|>\n' }}
  {%- elif m.role == 'tool' %}{% if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{% endif %}{{- '\n<tool_response>\n' + content + '\n</tool_response>' }}
    {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\n' }}{% endif %}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{% if enable_thinking is defined and enable_thinking is false %}{{- '<think>\n\n</think>\n\n' }}{% endif %}{% endif %}"""

HEADERS = """{{- bos_token }}{% if messages[0]['role'] == 'system' %}{% if messages[0]['content'] is string %}{% set first = messages[0]['content']|trim %}{% else %}{% set first = messages[0]['content'][0]['text']|trim %}{% endif %}
{%- set messages = messages[1:] %}{% else %}{% set first = '' %}{% endif %}
{{- '<|start_header_id|>system<|end_header_id|>\n\n' }}{% if tools is not none and tools %}{{- 'Environment: ipython\n' }}{% endif %}{{ "Today: " ~ strftime_now("%d %b %Y") ~ "\n\n" }}{{- first }}{{- '<|eot_id|>' }}
{%- for message in messages %}
  {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}{{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' }}
    {%- if message['content'] is string %}{{- message['content'] | trim }}{% else %}{% for part in message['content'] %}{% if part['type'] == 'text' %}{{- part['text'] | trim }}{% endif %}{% endfor %}{% endif %}{{- '<|eot_id|>' }}
  {%- elif 'tool_calls' in message %}{% if not message.tool_calls|length == 1 %}{{- raise_exception('one call at once') }}{% endif %}{% set f = message.tool_calls[0].function %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n{"name": "' + f.name + '", "parameters": ' }}{{- f.arguments | tojson }}{{- '}' }}{{- '<|eot_id|>' }}
  {%- else %}{{- '<|start_header_id|>ipython<|end_header_id|>\n\n' }}{% if message.content is mapping or message.content is not string %}{{- message.content | tojson }}{% else %}{{- message.content }}{% endif %}{{- '<|eot_id|>' }}{% endif %}
{%- endfor %}{% if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"""

TURNS = """{{ bos_token }}{%- if messages[0]['role'] == 'system' -%}{%- if messages[0]['content'] is string -%}{%- set first = messages[0]['content'] + '\n\n' -%}{%- else -%}{%- set first = messages[0]['content'][0]['text'] + '\n\n' -%}{%- endif -%}
{%- set rest = messages[1:] -%}{%- else -%}{%- set first = "" -%}{%- set rest = messages -%}{%- endif -%}
{%- for message in rest -%}{%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}{{ raise_exception("roles must alternate user/assistant") }}{%- endif -%}
{%- set role = "model" if message['role'] == 'assistant' else message['role'] -%}{{ '<start_of_turn>' + role + '\n' + (first if loop.first else "") }}
{%- if message['content'] is string -%}{{ message['content'] | trim }}{%- elif message['content'] is iterable -%}{%- for item in message['content'] -%}{%- if item['type'] == 'image' -%}{{ '<start_of_image>' }}{%- elif item['type'] == 'text' -%}{{ item['text'] | trim }}{%- endif -%}{%- endfor -%}
{%- else -%}{{ raise_exception("Invalid content type") }}{%- endif -%}{{ '<end_of_turn>\n' }}{%- endfor -%}{%- if add_generation_prompt -%}{{ '<start_of_turn>model\n' }}{%- endif -%}"""

INSTRUCTIONS = """{%- if messages[0]["role"] == "system" %}{% set system_message = messages[0]["content"] %}{% set loop_messages = messages[1:] %}{% else %}{% set loop_messages = messages %}{% endif %}
{%- set users = loop_messages | selectattr("role", "equalto", "user") | list %}{{- bos_token }}
{%- for message in loop_messages %}
  {%- if message["role"] == "user" %}{% if tools is not none and tools and (message == users[-1]) %}{{- "[AVAILABLE_TOOLS] [" }}{% for tool in tools %}{% set tool = tool.function %}{{- '{"function": {' }}{% for key, val in tool.items() if key != "return" %}
      {%- if val is string %}{{- '"' + key + '": "' + val + '"' }}{% else %}{{- '"' + key + '": ' + val|tojson }}{% endif %}{% if not loop.last %}{{- ", " }}{% endif %}{% endfor %}{{- "}}" }}{% if not loop.last %}{{- ", " }}{% else %}{{- "]" }}{% endif %}{% endfor %}{{- "[/AVAILABLE_TOOLS]" }}{% endif %}
    {%- if loop.last and system_message is defined %}{{- "[INST] " + system_message + "\n\n" + message["content"] + "[/INST]" }}{% else %}{{- "[INST] " + message["content"] + "[/INST]" }}{% endif %}
  {%- elif message.tool_calls is defined and message.tool_calls is not none %}{{- "[TOOL_CALLS] [" }}{% for call in message.tool_calls %}{% set out = call.function|tojson %}{{- out[:-1] }}{{- ', "id": "' + call.id + '"}' }}{% if not loop.last %}{{- ", " }}{% else %}{{- "]" + eos_token }}{% endif %}{% endfor %}
  {%- elif message["role"] == "assistant" %}{{- " " + message["content"]|trim + eos_token }}
  {%- elif message["role"] == "tool" %}{{- '[TOOL_RESULTS] {"content": ' + message.content|string + ", " }}{{- '"call_id": "' + message.tool_call_id + '"}[/TOOL_RESULTS]' }}{% endif %}
{%- endfor %}"""

# What the templates above do not: a role inside a name, what else strings are asked, lists as Python writes them.
ODD = """{%- macro say(m) -%}{{ '<|' ~ m.role ~ '|>' }}{{ m.content | replace('<think>', '') | replace('a', '[' ~ m.role ~ ']') }}{%- endmacro -%}
{%- for m in messages if m.content -%}{{ say(m) ~ '<|end|>' }}{{ m.content.strip() | upper }}|{{ m.content | title }}|{{ m.content.partition(' ')[2].lower() }}|{{ m.content | indent(2) }}|{{ m.content.splitlines() }}|{{ m }}
{%- for word in m.content.split() | unique | sort %}{{ word | e }},{{ word in 'the <|end|>' }}{% endfor %}{{ m.content.find('<') }}{{ m.content[::-1] }}{{ (m.content | list)[:3] | join('/') }}{{ '%-12s|%s' | format(m.content, m.name or 'x') }}
{%- for k, v in m | dictsort %}{{ k.upper() }}{{ m[k] == v }}{% if k == 'content' and v.isspace() %}SPACE{% endif %}{% endfor %}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"""

TEMPLATES = {
    "chatml": (CHATML, ["<|im_start|>", "<|im_end|>"]),
    "thinking": (THINKING, ["<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>"]),
    "headers": (HEADERS, ["<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]),
    "turns": (TURNS, ["<start_of_turn>", "<end_of_turn>"]),
    "instructions": (INSTRUCTIONS, ["[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_CALLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]"]),
    "odd": (ODD, []),
}
# Names in every test vocabulary; those of the second list are no special ones in the file.
SPECIAL = ["<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<start_of_turn>", "<end_of_turn>", "<|user|>", "<|assistant|>", "<|system|>", "<|end|>",
           "[INST]", "[/INST]", "[TOOL_CALLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]"]
USER_DEFINED = ["<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "<|fim|>"]
