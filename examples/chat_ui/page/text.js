// Every word the page says, in English and Chinese.
//
// Law of this file: words only. Numbers come in as arguments; nothing here knows the page. A new
// language is one more table with the same keys (a test compares them).

const english = {
  skip: "Skip to your message",
  welcome: "Ask anything",
  welcomeDetail: "When the server is busy this page tells you how long, keeps what you wrote, and lets you send the moment there is room.",
  ideas: ["Explain tides to a child", "Plan a weekend in Xiamen", "Write a haiku about waiting"],
  draftLabel: "Your message",
  placeholder: "Write a message",
  hint: "Enter sends, Shift + Enter starts a new line.",
  send: "Send",
  sendIn: (time) => `Send in ${time}`,
  sending: "Sending",
  stop: "Stop",
  cancel: "Cancel",
  auto: "Send by itself at zero",
  again: "Try again",
  askAgain: "Ask again",
  you: "You",
  assistant: "Assistant",
  answered: "The answer is complete",
  fullStop: ".",
  themeDark: "Dark theme",
  themeLight: "Light theme",
  languageLabel: "用中文显示",
  floodStart: "Start a flood",
  floodRunning: (done, all) => `Flood: ${done} of ${all}`,
  floodResult: ({ answered, refused, lost }) => `${answered} answered, ${refused} told to wait, ${lost} failed`,
  operator: "Operator's page",
  busyTitle: "The server is busy",
  waitTitle: (time) => `You can send in ${time}`,
  guess: "The server named no time, so this is a guess.",
  otherTab: "Another tab was told to wait.",
  kept: "Your message is kept.",
  ready: "You can send now",
  readyDetail: "There is room again. Your message is still here.",
  cancelled: "Nothing will be sent by itself.",
  connecting: "Waiting for the server",
  place: (position) => `You are number ${position} in line`,
  placeWait: (seconds) => `about ${seconds} s to go`,
  backendWaits: "Waiting for room on the server",
  stopped: "Stopped",
  broken: "The answer broke off. The server may have restarted.",
  offline: "You are offline",
  offlineDetail: "Your message is kept. Send it when you are connected again.",
  unreachable: "The server does not answer",
  unreachableDetail: "It may be down or restarting. Your message is kept.",
  blocked: "The server answered, but this page may not read it",
  blockedDetail:
    "The answer came without permission for this site (CORS), so a busy signal and its waiting time stay hidden. Whoever runs the server must allow this origin on refusals too.",
  htmlError: (status) => `Something between you and the server answered with an error page (${status})`,
  refused: (status) => `The server cannot take this message (${status})`,
  seconds: (count) => (count === 1 ? "1 second" : `${count} seconds`),
  reasons: {
    rate_limited: "You have sent many messages in a short time.",
    token_rate_limited: "You have used many tokens in a short time.",
    queue_full: "Every place in line is taken.",
    tenant_queue_full: "You already have as many messages waiting as you may.",
    wait_expired: "Your message waited as long as it may, and there was no room.",
    wait_too_long: "The line is longer than a message may wait.",
    displaced: "A more urgent message took this place.",
    too_early: "This was a little too early.",
    kv_blind: "The server cannot see its own load just now.",
    asleep: "The model is asleep.",
    draining: "The server is restarting.",
    insufficient_quota: "The quota is used up. Waiting does not help.",
  },
};

const chinese = {
  skip: "跳到输入框",
  welcome: "想问什么都可以",
  welcomeDetail: "服务器繁忙时，本页会告诉你还要等多久，保留你写的内容，一有空位就能发送。",
  ideas: ["给孩子讲讲潮汐", "安排一个厦门周末", "写一首关于等待的俳句"],
  draftLabel: "你的消息",
  placeholder: "输入消息",
  hint: "回车发送，Shift + 回车换行。",
  send: "发送",
  sendIn: (time) => `${time} 后可发送`,
  sending: "发送中",
  stop: "停止",
  cancel: "取消",
  auto: "等待结束后自动发送",
  again: "重试",
  askAgain: "再问一次",
  you: "你",
  assistant: "助手",
  answered: "回答完毕",
  fullStop: "。",
  themeDark: "深色主题",
  themeLight: "浅色主题",
  languageLabel: "Show in English",
  floodStart: "模拟洪峰",
  floodRunning: (done, all) => `洪峰：${done} / ${all}`,
  floodResult: ({ answered, refused, lost }) => `${answered} 个已回答，${refused} 次被要求等待，${lost} 个失败`,
  operator: "运维页面",
  busyTitle: "服务器繁忙",
  waitTitle: (time) => `${time} 后可以发送`,
  guess: "服务器没有说明时间，这是估计值。",
  otherTab: "另一个标签页被要求等待。",
  kept: "你的消息已保留。",
  ready: "现在可以发送",
  readyDetail: "又有空位了，你的消息还在。",
  cancelled: "不会自动发送任何内容。",
  connecting: "正在等待服务器",
  place: (position) => `你排在第 ${position} 位`,
  placeWait: (seconds) => `大约还要 ${seconds} 秒`,
  backendWaits: "正在等待服务器空位",
  stopped: "已停止",
  broken: "回答中断了，服务器可能已重启。",
  offline: "你已离线",
  offlineDetail: "消息已保留，恢复连接后再发送。",
  unreachable: "服务器没有回应",
  unreachableDetail: "它可能已停止或正在重启。你的消息已保留。",
  blocked: "服务器有回应，但本页无权读取",
  blockedDetail: "响应没有授权本站读取（CORS），因此看不到繁忙信号和等待时间。需要由服务器管理者在拒绝响应中也允许本来源。",
  htmlError: (status) => `中间的代理返回了错误页面（${status}）`,
  refused: (status) => `服务器无法接受这条消息（${status}）`,
  seconds: (count) => `${count} 秒`,
  reasons: {
    rate_limited: "短时间内发送的消息太多。",
    token_rate_limited: "短时间内使用的 token 太多。",
    queue_full: "队伍已经排满。",
    tenant_queue_full: "你排队中的消息已达上限。",
    wait_expired: "消息等到了时限，仍没有空位。",
    wait_too_long: "队伍太长，超过了允许等待的时间。",
    displaced: "更紧急的消息占用了这个位置。",
    too_early: "来得稍早了一点。",
    kv_blind: "服务器暂时看不到自身负载。",
    asleep: "模型处于休眠状态。",
    draining: "服务器正在重启。",
    insufficient_quota: "额度已用完，等待没有帮助。",
  },
};

export const TABLES = { en: english, zh: chinese };
let words = english;

/** The present language's table. */
export const say = new Proxy({}, { get: (_, key) => words[key] });

/** @param {"en" | "zh"} language */
export function setLanguage(language) {
  words = TABLES[language] ?? english;
  document.documentElement.lang = words === chinese ? "zh-CN" : "en";
  for (const element of document.querySelectorAll("[data-text]")) {
    element.textContent = words[element.dataset.text];
  }
}

/** What the person's browser asks for. */
export function preferredLanguage() {
  return navigator.language.toLowerCase().startsWith("zh") ? "zh" : "en";
}

/** `12 s`, `3:05` or `2:03:00`: whole units, as a clock shows them. */
export function clockTime(totalSeconds) {
  if (totalSeconds < 60) return words === chinese ? `${totalSeconds} 秒` : `${totalSeconds} s`;
  const seconds = String(totalSeconds % 60).padStart(2, "0");
  const minutes = Math.floor(totalSeconds / 60);
  if (minutes < 60) return `${minutes}:${seconds}`;
  return `${Math.floor(minutes / 60)}:${String(minutes % 60).padStart(2, "0")}:${seconds}`;
}
